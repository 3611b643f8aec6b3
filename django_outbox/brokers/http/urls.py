"""The option `url`: where messages are sent."""

import re
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import UrlOption

URL = UrlOption("url", "https://shop.example.com/hooks", ("http", "https"))

DEFAULT_PORTS = {"http": 80, "https": 443}

_CHARACTERS = re.compile(r"[!-z|~]+")
"""Printable ASCII without the space and braces: everything else in a URL is percent-encoded."""


class Origin(NamedTuple):
    """The server of a URL. `host` is a name or an IP address, without the brackets of IPv6."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def read_url(value: object) -> tuple[Origin, bytes]:
    """Return the server of a URL, and its path with the query. No error shows the URL, which may hold a secret."""
    parts = URL.read_one(value)
    if not _CHARACTERS.fullmatch(parts.geturl()):
        raise ImproperlyConfigured(
            "url has a space, a brace or a character that is not ASCII: percent-encode it in the path, a space as %20, "
            "and write the host as in DNS, such as xn--bcher-kva.example."
        )
    if "@" in parts.netloc:
        raise ImproperlyConfigured(
            "url contains a user or a password; set the header authorization in headers instead."
        )
    if parts.fragment:
        raise ImproperlyConfigured("url has a fragment (#), which is not sent; remove it.")
    host = str(parts.hostname)
    query = f"?{parts.query}" if parts.query else ""
    origin = Origin(parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme])
    return origin, ((parts.path or "/") + query).encode()
