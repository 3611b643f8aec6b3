"""The options of the publisher, validated."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ssl import SSLContext

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import PLAIN, validate_format
from django_outbox.brokers.http.encoding import HTTPEncoder
from django_outbox.brokers.http.urls import Origin, read_url
from django_outbox.brokers.options import read_ssl, require_flag, require_number, require_seconds

MAX_CONCURRENCY = 200


@dataclass(kw_only=True, eq=False, repr=False)
class HTTPOptions:
    """The options of the publisher; `HTTPPublisher` describes them."""

    alias: str = field(kw_only=False)
    url: str = ""
    secrets: str | Sequence[str] = ()
    headers: Mapping[str, str] | None = None
    timeout: float = 30.0
    connect_timeout: float = 5.0
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
        self.origin, self.target = read_url(self.url)
        require_seconds("timeout", self.timeout)
        require_seconds("connect_timeout", self.connect_timeout)
        require_number("concurrency", self.concurrency, 1, MAX_CONCURRENCY)
        require_flag("allow_private_addresses", self.allow_private_addresses)
        validate_format(self.format, self.source)
        uses_tls = self.origin.scheme == "https"
        if self.ssl is not None and not uses_tls:
            raise ImproperlyConfigured("ssl is set, but url is without TLS; it must begin with https://.")
        self.tls = read_ssl(self.ssl or {}) if uses_tls else None
        self.encoder = HTTPEncoder(self.origin, self.headers, self.secrets, format=self.format, source=self.source)
