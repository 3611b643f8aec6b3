"""A publisher for RabbitMQ: publisher confirms, many messages in flight, one connection for all threads."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar
from urllib.parse import quote

from django_outbox.brokers.cloudevents import PLAIN
from django_outbox.brokers.publisher import Publisher
from django_outbox.brokers.rabbitmq.call import Destinations, RabbitMQCall
from django_outbox.brokers.rabbitmq.encoding import Encoded, RabbitMQEncoder, as_event
from django_outbox.brokers.rabbitmq.options import PublishingOptions
from django_outbox.brokers.rabbitmq.publisher_connection import (
    REPLACED,
    RabbitMQPublisherConnection,
    Transmission,
    TrialConnection,
)
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork


@dataclass(kw_only=True, eq=False, repr=False)
class RabbitMQPublisher(PublishingOptions, Publisher):
    """Publishes to a RabbitMQ exchange over AMQP 0-9-1.

    A message is accepted when the broker has confirmed it. It is rejected if the broker returned it as unroutable, if
    it is too large, or if AMQP cannot carry it. It is deferred if the broker refused it with `basic.nack`, but
    confirmed others for its destination. If the broker accepts no message for a destination (because a queue is full,
    or without quorum), the destination is set aside for a while, and no attempts are used up.

    If the broker closes the channel because of a single message, that message is rejected; in a batch it must first be
    found. If the connection is lost, blocked or unresponsive, or the exchange is missing, unconfirmed messages are
    unanswered, and the next call of `publish` reconnects.

    The routing key is the message's topic, or its type if the topic is empty. The properties are `message_id`, `type`,
    `timestamp` (`occurred_at`), `content_type`, `content_encoding`, `delivery_mode` and the headers, with the key in
    `outbox-key`.

    Args:
        alias: the publisher's name in the settings.
        url: `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS; for a cluster, a list with a URL for each
            node, of which one that responds is used. Its query may set `heartbeat` (30 seconds unless it does),
            `frame_max`, `channel_max`, `locale`, `tcp_options` and `client_properties`.
        exchange: the exchange's name. If empty, the default exchange, where the routing key is the name of a queue.
        declare_exchange: `direct`, `topic`, `fanout` or `headers` to declare a durable exchange of that type when
            connecting; None if it exists.
        mandatory: whether a message that reaches no queue is rejected; otherwise the broker drops it, and it counts as
            accepted.
        timeout: seconds for connecting, all nodes together. A sixth of it is the time that the broker has to confirm a
            message before another connection shows whether it responds. A broker that is short of memory or disk may
            block the connection for `timeout`. At most a day, like all timeouts.
        connect_timeout: seconds for connecting to one node; at most its share of `timeout`.
        ssl: for `amqps://`, a dict with any of `cafile` (the authority to trust instead of the system's), `certfile`
            and `keyfile` (the client's certificate), all paths of PEM files. The broker is always verified.
        format: `"plain"`, or `"cloudevents"` for CloudEvents with their attributes in headers with the prefix `ce-`.
        source: the attribute `source` of CloudEvents, a URI reference.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows a
            password.
    """

    messaging_system: ClassVar[str] = "rabbitmq"
    broker_name = "RabbitMQ"

    _connections: dict[type[RabbitMQPublisherConnection], RabbitMQPublisherConnection] = field(init=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._encode = self._make_encode()
        self._start_over()
        after_fork(self, type(self)._start_over)

    def _make_encode(self) -> Callable[[Message], Encoded]:
        return RabbitMQEncoder(exchange=self.exchange, mandatory=self.mandatory).encode

    def describe(self) -> str:
        nodes = ", ".join(
            f"{'amqps' if host.ssl_options else 'amqp'}://{host.host}:{host.port}/{quote(host.virtual_host, safe='')}"
            for host in self.hosts
        )
        return f"RabbitMQ at {nodes}, exchange {self.exchange!r}"

    def prepare(self) -> str:
        return self._open(RabbitMQPublisherConnection)

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        if self.format != PLAIN:
            messages = [as_event(message, self.source) for message in messages]
        if self._destinations.suspended:
            self._destinations.update()
        transmission = None
        if not self._destinations.suspended:
            self._end_trials()
            transmission = self._submit(messages)
            transmission.wait()
            if transmission.needs_no_trial:
                return transmission.complete()
        # A message that tries a sick queue stalls its connection.
        submit_trial = partial(self._submit, over=TrialConnection)
        call = RabbitMQCall(messages, self._submit, submit_trial, self._open_trials, self._destinations)
        if transmission is None:
            call.publish()
        else:
            call.take_transmission(range(len(messages)), transmission)
        return call.result()

    def name_destination(self, message: Message) -> str:
        return ":".join(filter(None, (self.exchange, message.destination)))

    def close(self) -> None:
        with self._lock:
            connections = [*self._connections.values()]
            self._connections.clear()
        for connection in connections:
            connection.close()

    def _submit(
        self, messages: Sequence[Message], *, over: type[RabbitMQPublisherConnection] = RabbitMQPublisherConnection
    ) -> Transmission:
        transmission = Transmission(messages, self._encode)
        while transmission.missing and not self._usable(over).submit(transmission):
            pass
        return transmission

    def _usable(self, kind: type[RabbitMQPublisherConnection]) -> RabbitMQPublisherConnection:
        """Return the connection of this class, or a new one if it accepts no more transmissions."""
        with self._lock:
            connection = self._connections.get(kind)
            if connection is None or not connection.accepts_more:
                connection = self._connections[kind] = kind(self)
            return connection

    def _open(self, kind: type[RabbitMQPublisherConnection]) -> str:
        """Open a connection of this class if there is none. Return the reason if that fails, or an empty string."""
        reason = REPLACED
        while reason == REPLACED:
            reason = self._usable(kind).wait_until_ready()
        return reason

    def _open_trials(self) -> str:
        self._end_trials()
        return self._open(TrialConnection)

    def _end_trials(self) -> None:
        if TrialConnection in self._connections:
            with self._lock:
                trials = self._connections.pop(TrialConnection, None)
            if trials is not None:
                trials.retire()

    def _start_over(self) -> None:
        self._lock = threading.Lock()
        self._destinations = Destinations(self.alias)
        self._connections = {}
