"""The options of the RabbitMQ publisher and consumer: validate them, and read URLs as pika's parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, parse_qs

import pika
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.options import UrlOption, read_ssl, require_flag, require_seconds
from django_outbox.brokers.rabbitmq.encoding import MAX_SHORT_STRING, ROUTING_HEADERS

URL = UrlOption("url", "amqp://user:password@host:5672/vhost", ("amqp", "amqps"))

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")

OPTION_INSTEAD = {
    "ssl_options": "the option ssl",
    "blocked_connection_timeout": "the option blocked_timeout",
    "socket_timeout": "the option connect_timeout",
    "stack_timeout": "the option connect_timeout",
    "connection_attempts": "a list of urls; each publish makes one attempt at each",
    "retry_delay": "a list of urls; each publish makes one attempt at each",
}
"""Parameters of pika's URLs, and the publisher's option that replaces each one."""

MIN_FRAME_MAX = 8192
"""Minimum frame size in bytes that RabbitMQ 4 accepts."""

MAX_SHORT = 65_535
"""Maximum of AMQP numbers of 16 bits: the heartbeat interval, and the messages that are delivered ahead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """The options of a connection, by the alias of its publisher or consumer; times are in seconds."""

    alias: str
    hosts: tuple[pika.URLParameters, ...]
    timeout: float
    blocked_timeout: float
    exchange: str
    declare_exchange: str | None
    confirms: bool

    @property
    def stall_timeout(self) -> float:
        """Seconds that a channel may go without a response before the broker is probed."""
        return self.timeout / 6


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """The queue to read: `max_buffer_bytes` is the size of received messages beyond which the socket is not read."""

    name: str
    key_header: str
    max_prefetch: int
    max_buffer_bytes: int


def validate_message_options(*, mandatory: object, persistent: object, key_header: object) -> None:
    """Validate the options that decide how messages are encoded."""
    require_flag("mandatory", mandatory)
    require_flag("persistent", persistent)
    _require_short_string("key_header", key_header)
    if not key_header:
        raise ImproperlyConfigured("key_header is blank; set it to the name of the header that carries the key.")
    if key_header in ROUTING_HEADERS:
        raise ImproperlyConfigured(f"key_header is {key_header!r}: RabbitMQ reads routing keys there; rename it.")


def read_queue_options(*, queue: str, key_header: str, batch_size: int, batch_bytes: int) -> QueueOptions:
    """Validate the options of a queue."""
    _require_short_string("queue", queue, min_bytes=1)
    _require_short_string("key_header", key_header, min_bytes=1)
    # While one batch is stored, the next one arrives.
    return QueueOptions(
        name=queue,
        key_header=key_header,
        max_prefetch=min(2 * batch_size, MAX_SHORT),
        max_buffer_bytes=2 * batch_bytes,
    )


def read_options(
    alias: str,
    *,
    url: str | Sequence[str],
    timeout: float,
    connect_timeout: float,
    blocked_timeout: float,
    heartbeat: int | None,
    ssl: Mapping[str, str] | None,
    exchange: str = "",
    declare_exchange: str | None = None,
    dangerously_disable_confirms: bool = False,
) -> ConnectionOptions:
    """Validate the options that decide how to connect, which `RabbitMQPublisher` describes.

    RabbitMQ's management pages show `alias` as part of the connection's name. No error shows a url, which may hold a
    password.
    """
    _require_short_string("exchange", exchange)
    if declare_exchange is not None and declare_exchange not in EXCHANGE_TYPES:
        raise ImproperlyConfigured(
            f"declare_exchange is {declare_exchange!r}; it must be None or one of {', '.join(EXCHANGE_TYPES)}."
        )
    if declare_exchange is not None and not exchange:
        raise ImproperlyConfigured("declare_exchange is set, but exchange is blank; name the exchange to declare.")
    require_flag("dangerously_disable_confirms", dangerously_disable_confirms)
    require_seconds("timeout", timeout)
    require_seconds("connect_timeout", connect_timeout)
    require_seconds("blocked_timeout", blocked_timeout)
    if heartbeat is not None and (type(heartbeat) is not int or not 0 <= heartbeat <= MAX_SHORT):
        raise ImproperlyConfigured(
            f"heartbeat is {heartbeat!r}; it must be whole seconds from 1 to {MAX_SHORT}, 0 for none, or None."
        )
    hosts = tuple(_read_url(*each, heartbeat) for each in URL.read(url))
    if ssl is not None:
        _set_tls(hosts, ssl)
    for host in hosts:
        host.socket_timeout = host.stack_timeout = min(connect_timeout, timeout / len(hosts))
        host.blocked_connection_timeout = blocked_timeout
        host.connection_attempts = 1
        host.client_properties = {**(host.client_properties or {}), "connection_name": f"django_outbox {alias}"}
    return ConnectionOptions(
        alias=alias,
        hosts=hosts,
        timeout=timeout,
        blocked_timeout=blocked_timeout,
        exchange=exchange,
        declare_exchange=declare_exchange,
        confirms=not dangerously_disable_confirms,
    )


def _read_url(url: str, parts: SplitResult, heartbeat: int | None) -> pika.URLParameters:
    if not parts.hostname or "@" in parts.path + parts.query + parts.fragment:
        raise URL.unreadable
    if parts.username is not None and parts.password is None:
        raise URL.unreadable
    query = parse_qs(parts.query)
    for parameter in query:
        if parameter in OPTION_INSTEAD:
            raise ImproperlyConfigured(f"url must not set {parameter}; use {OPTION_INSTEAD[parameter]}.")
    try:
        parameters = pika.URLParameters(url)
    except Exception as error:
        raise ImproperlyConfigured(f"url has a query that cannot be read: {error}.") from None
    if parameters.frame_max < MIN_FRAME_MAX:
        raise ImproperlyConfigured(
            f"url sets frame_max to {parameters.frame_max}; RabbitMQ 4 refuses less than {MIN_FRAME_MAX}. "
            f"Leave it out, or set it to {MIN_FRAME_MAX} or more."
        )
    if "heartbeat" not in query:
        parameters.heartbeat = heartbeat
    return parameters


def _set_tls(hosts: Sequence[pika.URLParameters], files: object) -> None:
    context = read_ssl(files)
    if not all(host.ssl_options for host in hosts):
        raise ImproperlyConfigured("ssl is set, but a url is without TLS; every url must begin with amqps://.")
    for host in hosts:
        host.ssl_options = pika.SSLOptions(context, host.host)


def _require_short_string(option: str, value: object, min_bytes: int = 0) -> None:
    if not isinstance(value, str) or not min_bytes <= len(value.encode("utf-8", "replace")) <= MAX_SHORT_STRING:
        size = f"{min_bytes} to" if min_bytes else "at most"
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a string of {size} {MAX_SHORT_STRING} bytes.")
