"""The option `ssl` of a publisher: the files of TLS certificates."""

import ssl
from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured

KEYS = ("cafile", "certfile", "keyfile")


def read_ssl(files: object) -> ssl.SSLContext:
    """Return a context that verifies the server.

    Args:
        files: a dict with any of `cafile` (the authority to trust instead of the system's), `certfile` and `keyfile`
            (the client's certificate), all paths of PEM files; empty for the system's authorities alone.

    Raises:
        ImproperlyConfigured: it is something else, or a file cannot be loaded.
    """
    if not isinstance(files, Mapping) or not set(files) <= set(KEYS):
        raise ImproperlyConfigured(
            f"ssl must be a dict with any of the keys {', '.join(KEYS)}, each the path of a file."
        )
    if "keyfile" in files and "certfile" not in files:
        raise ImproperlyConfigured("ssl has keyfile but no certfile; set both, or a certfile that contains the key.")
    try:
        context = ssl.create_default_context(cafile=files.get("cafile"))
        if "certfile" in files:
            context.load_cert_chain(files["certfile"], files.get("keyfile"))
    except (OSError, TypeError, ValueError) as error:
        paths = ", ".join(f"{key} {value!r}" for key, value in files.items())
        raise ImproperlyConfigured(f"ssl: {paths} cannot be loaded: {error}; each must be a PEM file.") from None
    return context
