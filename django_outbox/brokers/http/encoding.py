"""Encode messages as HTTP requests, and sign them as Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers import cloudevents
from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.text_headers import own_headers, text_headers
from django_outbox.messages import Message

Headers = list[tuple[bytes, bytes]]

PREFIX = "whsec_"

MIN_SECRET, MAX_SECRET = 24, 64
"""Numbers of bytes of a secret that the specification permits."""

SIGNED = ("webhook-id", "webhook-timestamp", "webhook-signature")

FRAMING = (
    *("host", "content-length", "content-encoding", "transfer-encoding", "connection", "keep-alive"),
    *("proxy-connection", "te", "trailer", "upgrade", "expect", "http2-settings"),
)
"""Headers that concern the connection or the framing of the body: https://www.rfc-editor.org/rfc/rfc9110#section-7.6.1."""

RESERVED = frozenset(name.encode() for name in (*SIGNED, *FRAMING))
"""Names of headers of a message that are not sent."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
"""The name of a header: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.2."""

_TO_ENCODE = re.compile(r"\A +|(?<! ) +\Z|[^ -$&-~]+")
"""All but printable ASCII, % itself, and spaces at the ends, where HTTP removes them."""


class Request(NamedTuple):
    headers: Headers
    message_id: str
    body: bytes


class HTTPEncoder:
    """Encodes and signs messages. The option `headers` takes precedence over a message's own ones of the same name."""

    def __init__(self, authority: str, headers: object, secrets: object, *, format: str, source: str) -> None:
        self._authority = authority.encode()
        self._fixed = _read_headers(headers)
        self._fixed_names = frozenset(name for name, _value in self._fixed)
        given = [secrets] if isinstance(secrets, str) else secrets
        if not isinstance(given, list | tuple):
            raise ImproperlyConfigured("secrets must be a string like 'whsec_...', or a list of such strings.")
        self._keys = [_read_secret(number, secret) for number, secret in enumerate(given, 1)]
        self._format = format
        self._source = source

    def encode(self, message: Message) -> Request:
        if self._format == cloudevents.PLAIN:
            found = [(_name(name), _encode(value)) for name, value in text_headers(message)]
        else:
            found = [(_name(name), _encode(value)) for name, value in own_headers(message, without="ce-")]
            found += event_headers(cloudevents.attributes(message, self._source))
        headers = [
            (b"host", self._authority),
            (b"user-agent", b"django-outbox"),
            (b"content-length", b"%d" % len(message.payload)),
            *self._fixed,
        ]
        headers += [header for header in found if header[0] not in self._fixed_names and header[0] not in RESERVED]
        return Request(headers, message.message_id, message.payload)

    def sign(self, request: Request, now: float) -> Headers:
        id, timestamp = request.message_id.encode(), b"%d" % int(now)
        signed = [(b"webhook-id", id), (b"webhook-timestamp", timestamp)]
        if self._keys:
            content = b"%s.%s.%s" % (id, timestamp, request.body)
            digests = (hmac.digest(key, content, hashlib.sha256) for key in self._keys)
            signed.append((b"webhook-signature", b" ".join(b"v1," + base64.b64encode(each) for each in digests)))
        return request.headers + signed


def event_headers(attributes: Mapping[str, str]) -> Headers:
    found = [(f"ce-{name}".encode(), cloudevents.percent_encode(value).encode()) for name, value in attributes.items()]
    return [*found, (b"content-type", b"application/json")]


def _encode(value: str) -> bytes:
    """Percent-encode what HTTP would not carry unchanged."""
    if value.isascii() and value.isprintable() and "%" not in value and value == value.strip():
        return value.encode()
    return _TO_ENCODE.sub(lambda found: quote(found[0], safe=""), value).encode()


# Most messages have the same few headers.
@lru_cache(maxsize=1000)
def _name(name: str) -> bytes:
    if not _TOKEN.fullmatch(name):
        raise Unencodable(f"headers[{name!r}]: its name is not a valid name of an HTTP header")
    return name.lower().encode()


def _read_headers(headers: object) -> Headers:
    if headers is None:
        return []
    if not isinstance(headers, Mapping):
        raise ImproperlyConfigured('headers must be a dict of strings, such as {"authorization": "Bearer ..."}.')
    found = []
    for name, value in headers.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise ImproperlyConfigured(f"headers: {name!r} is not a valid name of an HTTP header.")
        encoded_name = name.lower().encode()
        if encoded_name in RESERVED or encoded_name == b"content-type":
            raise ImproperlyConfigured(f"headers must not set {name}, which is set by the publisher.")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable() or value != value.strip():
            raise ImproperlyConfigured(
                f"headers: the value of {name!r} (it is not shown) must be printable ASCII without spaces at its ends."
            )
        found.append((encoded_name, value.encode()))
    return found


def _read_secret(number: int, secret: object) -> bytes:
    if isinstance(secret, str) and secret.startswith(PREFIX):
        with suppress(ValueError):
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
            if MIN_SECRET <= len(key) <= MAX_SECRET:
                return key
    raise ImproperlyConfigured(
        f"secret {number} in secrets cannot be read (it is not shown); it must be {PREFIX!r} and {MIN_SECRET} to "
        f"{MAX_SECRET} random bytes in base64."
    )
