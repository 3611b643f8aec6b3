"""A publisher for RabbitMQ: publisher confirms, many messages in flight, one connection for all threads."""

import os
import threading
import weakref
from collections.abc import Mapping, Sequence

from django.core.exceptions import ImproperlyConfigured

from django_outbox.messages import Message, Outcome
from django_outbox.publishers.base import Publisher
from django_outbox.publishers.rabbitmq_batch import Batch
from django_outbox.publishers.rabbitmq_channel import ChannelOptions
from django_outbox.publishers.rabbitmq_connection import ConnectionOptions, RabbitMQConnection
from django_outbox.publishers.rabbitmq_encoding import MAX_SHORT_STRING, ROUTING_HEADERS, Encoder
from django_outbox.publishers.rabbitmq_urls import read_hosts

EXCHANGE_TYPES = ("direct", "topic", "fanout", "headers")


class RabbitMQPublisher(Publisher):
    """Publishes to a RabbitMQ exchange over AMQP 0-9-1.

    A message is accepted when the broker confirmed it, rejected when it came back unroutable, is too large or cannot be
    encoded, and tried again later when the broker refused it with `basic.nack` (a full queue). When the broker closes
    the channel because of a message, one that stood alone is rejected; of several it is not known which. When the
    connection is lost, blocked or silent, or the exchange is missing, what is unconfirmed stays unanswered, and the
    next call of `publish` connects anew.

    The routing key is the message's topic, or its type. The properties are `message_id`, `type`, `timestamp` (when it
    occurred), `content_type`, `content_encoding`, `delivery_mode`, the headers with the key among them, and
    `correlation_id` where a header of that name is a string.

    Args:
        url: `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS, or a list of such for the nodes of a
            cluster, of which one that answers is taken. Its query may set `heartbeat`, `frame_max`, `channel_max`,
            `locale`, `tcp_options` and `client_properties`.
        exchange: the exchange; the default exchange if blank, where the routing key is the name of a queue.
        declare_exchange: `direct`, `topic`, `fanout` or `headers` to declare a durable exchange of that type upon
            connecting; None expects that it exists.
        mandatory: a message that reaches no queue is rejected; otherwise the broker drops it and it counts as accepted.
        persistent: messages survive a restart of the broker, in durable queues.
        timeout: seconds that connecting may take, and that the broker may be silent while a message is unconfirmed.
        blocked_timeout: seconds that the broker may block the connection, as it does when short of memory or disk.
        heartbeat: seconds without a sign of life after which the connection counts as dead; 0 for never, None for what
            the broker suggests. The url's query takes precedence.
        ssl: for `amqps://` a dict with any of `cafile` (the authority to trust instead of the system's), `certfile`
            and `keyfile` (the client's own certificate), all paths of PEM files. The broker is always verified.
        key_header: the name of the header that carries the message's key, unless that is blank.
        dangerously_disable_confirms: accept a message as soon as the broker has read it, without waiting until it is
            stored. MESSAGES ARE LOST when the broker or a queue's node dies, or a queue refuses them.

    Raises:
        ImproperlyConfigured: an option is wrong; it names the option and the remedy, and never shows a password.
    """

    def __init__(
        self,
        alias: str,
        *,
        url: str | Sequence[str] = (),
        exchange: str = "",
        declare_exchange: str | None = None,
        mandatory: bool = True,
        persistent: bool = True,
        timeout: float = 30.0,
        blocked_timeout: float = 30.0,
        heartbeat: int | None = 30,
        ssl: Mapping[str, str] | None = None,
        key_header: str = "outbox-key",
        dangerously_disable_confirms: bool = False,
    ) -> None:
        super().__init__(alias)
        _require_short_string("exchange", exchange)
        _require_short_string("key_header", key_header)
        if not key_header:
            raise ImproperlyConfigured("key_header is blank; name the header that is to carry the key.")
        if key_header in ROUTING_HEADERS:
            raise ImproperlyConfigured(f"key_header is {key_header!r}: RabbitMQ reads routing keys there; rename it.")
        if declare_exchange is not None and declare_exchange not in EXCHANGE_TYPES:
            raise ImproperlyConfigured(
                f"declare_exchange is {declare_exchange!r}; it must be None or one of {', '.join(EXCHANGE_TYPES)}."
            )
        if declare_exchange is not None and not exchange:
            raise ImproperlyConfigured("declare_exchange is set, but exchange is blank; name the exchange to declare.")
        _require_flag("mandatory", mandatory)
        _require_flag("persistent", persistent)
        _require_flag("dangerously_disable_confirms", dangerously_disable_confirms)
        _require_seconds("timeout", timeout)
        _require_seconds("blocked_timeout", blocked_timeout)
        if heartbeat is not None and (type(heartbeat) is not int or not 0 <= heartbeat <= 65535):
            raise ImproperlyConfigured(
                f"heartbeat is {heartbeat!r}; it must be whole seconds from 1 to 65535, 0 for none, or None."
            )
        self._options = ConnectionOptions(
            alias=alias,
            hosts=read_hosts(
                url,
                ssl,
                name=f"django_outbox {alias}",
                timeout=timeout,
                blocked_timeout=blocked_timeout,
                heartbeat=heartbeat,
            ),
            channel=ChannelOptions(
                exchange=exchange,
                declare_exchange=declare_exchange,
                confirms=not dangerously_disable_confirms,
            ),
            timeout=timeout,
            blocked_timeout=blocked_timeout,
        )
        self._lock = threading.Lock()
        self._connection: RabbitMQConnection | None = None
        encoder = Encoder(exchange=exchange, mandatory=mandatory, persistent=persistent, key_header=key_header)
        self._encode = encoder.encode
        _publishers.add(self)

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        batch = Batch(messages, self._encode)
        while batch.missing and not self._connection_in_use().submit(batch):
            pass
        return batch.wait()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connection_in_use(self) -> RabbitMQConnection:
        with self._lock:
            if self._connection is None or self._connection.over:
                self._connection = RabbitMQConnection(self._options)
            return self._connection

    def _forget_connection(self) -> None:
        self._lock = threading.Lock()
        self._connection = None


def _require_short_string(option: str, value: object) -> None:
    if not isinstance(value, str) or len(value.encode("utf-8", "replace")) > MAX_SHORT_STRING:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a string of at most {MAX_SHORT_STRING} bytes.")


def _require_flag(option: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be True or False.")


def _require_seconds(option: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 86_400:
        raise ImproperlyConfigured(f"{option} is {value!r}; it must be a number of seconds above 0, at most a day.")


_publishers: "weakref.WeakSet[RabbitMQPublisher]" = weakref.WeakSet()


def _forget_connections() -> None:
    # After a fork the connections, their threads and their locks are the parent's.
    for publisher in _publishers:
        publisher._forget_connection()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections)
