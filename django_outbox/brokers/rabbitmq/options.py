"""The options of the RabbitMQ publisher and consumer: validate them, and read URLs as pika's parameters."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qs

import pika
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.cloudevents import PLAIN, validate_format
from django_outbox.brokers.options import (
    STALL_SHARE,
    UrlOption,
    read_ssl,
    require_choice,
    require_flag,
    require_printable,
    require_seconds,
)
from django_outbox.brokers.rabbitmq.encoding import MAX_SHORT_STRING

URL = UrlOption("url", "amqp://user:password@host:5672/vhost", ("amqp", "amqps"))

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")

PARAMETERS = ("heartbeat", "frame_max", "channel_max", "locale", "tcp_options", "client_properties")
"""Parameters of pika's URLs that are used. Options replace the others."""

HEARTBEAT = 30
"""Interval of AMQP heartbeats in seconds, unless the URL sets it."""

MAX_SHORT = 65_535
"""Maximum of AMQP numbers of 16 bits, such as the messages that are delivered ahead."""


@dataclass(kw_only=True, eq=False, repr=False)
class RabbitMQOptions:
    """The options of both ends: how to connect. `RabbitMQPublisher` describes them.

    RabbitMQ's management pages show `alias` as part of the connection's name. No error shows a url, which may hold a
    password.
    """

    alias: str = field(kw_only=False)
    url: str | Sequence[str] = ()
    timeout: float = 30.0
    connect_timeout: float = 5.0
    ssl: Mapping[str, str] | None = None
    hosts: tuple[pika.URLParameters, ...] = field(init=False)

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        require_seconds("connect_timeout", self.connect_timeout)
        self.hosts = tuple(_read_url(*each) for each in URL.read(self.url))
        if self.ssl is not None:
            _set_tls(self.hosts, self.ssl)
        for host in self.hosts:
            host.socket_timeout = host.stack_timeout = min(self.connect_timeout, self.timeout / len(self.hosts))
            host.connection_attempts = 1
            host.client_properties = {
                **(host.client_properties or {}),
                "connection_name": f"django_outbox {self.alias}",
            }


@dataclass(kw_only=True, eq=False, repr=False)
class PublishingOptions(RabbitMQOptions):
    exchange: str = ""
    declare_exchange: str | None = None
    mandatory: bool = True
    format: str = PLAIN
    source: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_short_string("exchange", self.exchange)
        require_choice("declare_exchange", self.declare_exchange, (None, *EXCHANGE_TYPES))
        if self.declare_exchange is not None and not self.exchange:
            raise ImproperlyConfigured("declare_exchange is set, but exchange is blank; name the exchange to declare.")
        require_flag("mandatory", self.mandatory)
        validate_format(self.format, self.source)
        for host in self.hosts:
            host.blocked_connection_timeout = self.timeout

    @property
    def stall_timeout(self) -> float:
        """Seconds that a channel may go without a response before the broker is probed."""
        return self.timeout / STALL_SHARE


def _read_url(url: str, parts: SplitResult) -> pika.URLParameters:
    has_no_password = parts.username is not None and parts.password is None
    if has_no_password or "@" in parts.path + parts.query + parts.fragment:
        raise URL.unreadable
    query = parse_qs(parts.query)
    if others := [parameter for parameter in query if parameter not in PARAMETERS]:
        raise ImproperlyConfigured(
            f"url must not set {others[0]}, only {', '.join(PARAMETERS)}; use the options timeout, connect_timeout and "
            "ssl for the rest."
        )
    try:
        parameters = pika.URLParameters(url)
    except Exception as error:
        raise ImproperlyConfigured(f"url has a query that cannot be read: {error}.") from None
    if "heartbeat" not in query:
        parameters.heartbeat = HEARTBEAT
    return parameters


def _set_tls(hosts: Sequence[pika.URLParameters], files: object) -> None:
    context = read_ssl(files)
    if not all(host.ssl_options for host in hosts):
        raise ImproperlyConfigured("ssl is set, but a url is without TLS; every url must begin with amqps://.")
    for host in hosts:
        host.ssl_options = pika.SSLOptions(context, host.host)


def require_short_string(option: str, value: object) -> None:
    with suppress(UnicodeEncodeError):
        if isinstance(value, str) and len(value.encode()) <= MAX_SHORT_STRING:
            require_printable(option, value)
            return
    raise ImproperlyConfigured(
        f"{option} is {value!r}; it must be a string of at most {MAX_SHORT_STRING} bytes in UTF-8."
    )
