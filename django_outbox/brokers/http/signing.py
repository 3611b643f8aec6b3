"""Sign requests as Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

from django.core.exceptions import ImproperlyConfigured

PREFIX = "whsec_"

MIN_SECRET, MAX_SECRET = 24, 64
"""Numbers of bytes of a secret that the specification permits."""


class Signer:
    """Signs with one or several secrets; a receiver accepts a request if it knows one of them.

    Args:
        secrets: each `whsec_` and 24 to 64 bytes in base64.

    Raises:
        ImproperlyConfigured: a secret cannot be read. The error never shows it.
    """

    def __init__(self, secrets: object) -> None:
        given = [secrets] if isinstance(secrets, str) else secrets
        if not isinstance(given, list | tuple):
            raise ImproperlyConfigured("secrets must be a string like 'whsec_...', or a list of such strings.")
        self._keys: Sequence[bytes] = [_read_secret(number, secret) for number, secret in enumerate(given, 1)]

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        """Return the header `webhook-signature`; blank if there are no secrets.

        Args:
            message_id: the header `webhook-id`.
            timestamp: the header `webhook-timestamp`: Unix time in seconds.
            body: the body of the request.
        """
        signed = f"{message_id}.{timestamp}.".encode() + body
        return " ".join(
            "v1," + base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode() for key in self._keys
        )


def _read_secret(number: int, secret: object) -> bytes:
    remedy = (
        f"secret {number} in secrets cannot be read (it is not shown); it must be {PREFIX!r} and {MIN_SECRET} to "
        f"{MAX_SECRET} random bytes in base64."
    )
    if not isinstance(secret, str) or not secret.startswith(PREFIX):
        raise ImproperlyConfigured(remedy)
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ImproperlyConfigured(remedy) from None
    if not MIN_SECRET <= len(key) <= MAX_SECRET:
        raise ImproperlyConfigured(remedy)
    return key
