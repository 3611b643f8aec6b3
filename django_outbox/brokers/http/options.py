"""The options of the publisher, validated."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import NamedTuple

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import PLAIN, validate_format
from django_outbox.brokers.http.encoding import HTTPEncoder
from django_outbox.brokers.options import UrlOption, read_ssl, require_flag, require_number, require_seconds

MAX_CONCURRENCY = 200

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


@dataclass(kw_only=True, eq=False, repr=False)
class HTTPOptions:
    """The options of the publisher; `HTTPPublisher` describes them."""

    alias: str = field(kw_only=False)
    url: str = ""
    secrets: str | Sequence[str] = ()
    headers: Mapping[str, str] | None = None
    timeout: float = 30.0
    concurrency: int = 20
    ssl: Mapping[str, str] | None = None
    allow_private_addresses: bool = False
    format: str = PLAIN
    source: str = ""
    tls: SSLContext | None = field(init=False)
    encoder: HTTPEncoder = field(init=False)
    origin: Origin = field(init=False)
    target: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.origin, self.target = _read_url(self.url)
        require_seconds("timeout", self.timeout)
        require_number("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        require_flag("allow_private_addresses", self.allow_private_addresses)
        validate_format(self.format, self.source)
        uses_tls = self.origin.scheme == "https"
        if self.ssl is not None and not uses_tls:
            raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with https://.")
        self.tls = read_ssl(self.ssl or {}) if uses_tls else None
        self.encoder = HTTPEncoder(
            self.origin.authority, self.headers, self.secrets, format=self.format, source=self.source
        )


def _read_url(value: object) -> tuple[Origin, bytes]:
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
    host = str(parts.hostname)
    query = f"?{parts.query}" if parts.query else ""
    origin = Origin(parts.scheme, host, parts.port or DEFAULT_PORTS[parts.scheme])
    return origin, ((parts.path or "/") + query).encode()
