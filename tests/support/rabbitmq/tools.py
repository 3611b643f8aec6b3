"""Helpers for tests of the RabbitMQ publisher: temporary queues, and proxies of the broker."""

import ssl
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pika
from django.conf import settings
from pika.adapters.blocking_connection import BlockingChannel

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.brokers.rabbitmq.publisher_connection import PublisherChannel, RabbitMQPublisherConnection
from django_outbox.messages import Message, Outcome
from tests.support.proxies import Proxies, Proxy

HEARTBEAT = pika.frame.Heartbeat().marshal()


def broker_url(*, scheme: str = "amqp", port: int | None = None, password: str | None = None, query: str = "") -> str:
    """Return the broker's URL with changes; a port is that of a proxy on this machine."""
    parts = urlsplit(str(settings.AMQP_URL))
    address = parts.netloc.rpartition("@")[2] if port is None else f"127.0.0.1:{port}"
    return urlunsplit((scheme, f"{parts.username}:{password or parts.password}@{address}", parts.path, query, ""))


def broker_address() -> str:
    """Return host and port of the broker, as the project names it in texts."""
    parts = urlsplit(str(settings.AMQP_URL))
    return f"{parts.hostname}:{parts.port or 5672}"


@dataclass(frozen=True)
class Received:
    """A message as a consumer sees it."""

    properties: pika.BasicProperties
    body: bytes
    routing_key: str


class Broker:
    """The broker as administrators and consumers see it; leaving the context deletes its queues and exchanges."""

    def __init__(self) -> None:
        self._connection = pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))
        self.channel: BlockingChannel = self._connection.channel()
        self._queues: list[str] = []
        self._exchanges: list[str] = []

    def queue(self, kind: str = "classic", **arguments: Any) -> str:
        """Declare a durable queue with a unique name."""
        name = f"outbox-test-{uuid.uuid4()}"
        self._queues.append(name)
        named = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
        self.channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **named})
        return name

    def exchange_name(self) -> str:
        """Return a unique name for an exchange, which is deleted at the end if it was declared."""
        self._exchanges.append(f"outbox-test-{uuid.uuid4()}")
        return self._exchanges[-1]

    def exchange(self, kind: str = "topic") -> str:
        """Declare a durable exchange with a unique name."""
        name = self.exchange_name()
        self.channel.exchange_declare(name, kind, durable=True)
        return name

    def depth(self, queue: str) -> int:
        count: int = self.channel.queue_declare(queue, passive=True).method.message_count
        return count

    def take(self, queue: str) -> Iterator[Received]:
        """Take all messages out of a queue, in order."""
        while True:
            method, properties, body = self.channel.basic_get(queue, auto_ack=True)
            if method is None or properties is None or body is None:
                return
            yield Received(properties, body, str(method.routing_key))

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._queues:
            self.channel.queue_delete(name)
        for name in self._exchanges:
            self.channel.exchange_delete(name)
        self._connection.close()


def open_proxy(proxies: Proxies, tls: ssl.SSLContext | None = None) -> Proxy:
    """Open a proxy of the broker. With `tls`, its clients speak TLS."""
    parts = urlsplit(str(settings.AMQP_URL))
    return proxies.open(parts.port or 5672, tls, host=parts.hostname or "")


def say(proxy: Proxy, method: pika.amqp_object.Method, channel: int = 0) -> None:
    """Send a method to the last client, as if the broker had."""
    proxy.say(pika.frame.Method(channel, method).marshal())


MakePublisher = Callable[..., RabbitMQPublisher]


class Publishing(threading.Thread):
    """Publishes in its own thread; `outcomes` waits for the end."""

    def __init__(self, publisher: RabbitMQPublisher, messages: Sequence[Message]) -> None:
        super().__init__(daemon=True)
        self._publish = lambda: publisher.publish(messages)
        self._outcomes: Sequence[Outcome] = []
        self.start()

    def run(self) -> None:
        self._outcomes = self._publish()

    def outcomes(self) -> Sequence[Outcome]:
        self.join(60)
        assert not self.is_alive(), "the publisher returned no outcomes within 60 s"
        return self._outcomes


def connection_of(publisher: RabbitMQPublisher) -> RabbitMQPublisherConnection:
    return publisher._connections[RabbitMQPublisherConnection]


def channels_of(publisher: RabbitMQPublisher) -> list[PublisherChannel]:
    return connection_of(publisher)._channels


def in_flight(publisher: RabbitMQPublisher) -> bool:
    """Whether messages were sent that have no outcome yet."""
    carried = [channel.transmission for channel in channels_of(publisher)]
    return any(transmission is not None and transmission.sent for transmission in carried)
