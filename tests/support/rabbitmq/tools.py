"""Helpers for tests of the RabbitMQ publisher: temporary queues, and a proxy that disturbs connections."""

import contextlib
import selectors
import socket
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
        """Return the number of messages in a queue."""
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


class TcpProxy:
    """A proxy of the broker that can stall and cut connections, and send methods itself.

    Args:
        tls: speak TLS with the client, and plain text with the broker.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.connections = 0
        self.open = 0
        self.heartbeats = 0
        self._sending = threading.Lock()
        self._bytes_from_broker = 0
        self.beginning = b""
        self._tls = tls
        self._allowance: int | None = None
        self._stopped = False
        self._clients: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def bytes_from_broker(self) -> int:
        """How much the client was sent; what it may have read is counted."""
        with self._sending:
            return self._bytes_from_broker

    def hold_back(self, *, after: int = 0) -> None:
        """Let that many more bytes through to the broker, and then nothing."""
        self._allowance = after

    def resume(self) -> None:
        """Let everything through again."""
        self._allowance = None

    def end_connections(self) -> None:
        """End each connection as a broker that goes away does; what was sent before still arrives."""
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)

    def say(self, method: pika.amqp_object.Method, channel: int = 0) -> None:
        """Send a method to the last client, as if the broker had; only while the broker is silent itself."""
        self._clients[-1].sendall(pika.frame.Method(channel, method).marshal())

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.join()
        for each in (*self._clients, self._server):
            each.close()

    def _start(self, work: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=work, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        self._server.settimeout(0.05)
        while not self._stopped:
            with contextlib.suppress(TimeoutError):
                client, _ = self._server.accept()
                client.settimeout(5)
                self.connections += 1
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        # A client that hangs up, or does not trust the certificate, ends its connection and not the test.
        with contextlib.suppress(OSError):
            if self._tls is not None:
                client = self._tls.wrap_socket(client, server_side=True)
            self._clients.append(client)
            parts = urlsplit(settings.AMQP_URL)
            with socket.create_connection((parts.hostname or "", parts.port or 5672)) as broker:
                self.open += 1
                try:
                    while not self._stopped and self._forward(client, broker):
                        pass
                finally:
                    self.open -= 1
        # Not closed before the end: that would take back what the client has not read yet.
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_WR)

    def _forward(self, client: socket.socket, broker: socket.socket) -> bool:
        """Carry what there is in both directions; False when one end is gone."""
        with selectors.DefaultSelector() as selector:
            selector.register(broker, selectors.EVENT_READ)
            if self._allowance != 0:
                selector.register(client, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select(0.02)}
        if client in ready and not self._carry_to_broker(client, broker):
            return False
        if broker in ready:
            data = broker.recv(65536)
            with self._sending:
                client.sendall(data)
                self._bytes_from_broker += len(data)
            return bool(data)
        return True

    def _carry_to_broker(self, client: socket.socket, broker: socket.socket) -> bool:
        while True:
            allowance = self._allowance
            if allowance == 0:
                return True
            data = client.recv(allowance or 65536)
            if allowance:
                self._allowance = allowance - len(data)
            self.heartbeats += data.count(HEARTBEAT)
            self.beginning = (self.beginning + data)[:4096]
            broker.sendall(data)
            # What TLS has decrypted already is not seen by a selector.
            if not (isinstance(client, ssl.SSLSocket) and client.pending()):
                return bool(data)


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
    assert publisher._connection is not None
    return publisher._connection


def channels_of(publisher: RabbitMQPublisher) -> list[PublisherChannel]:
    return connection_of(publisher)._channels


def in_flight(publisher: RabbitMQPublisher) -> bool:
    """Whether messages were sent that have no outcome yet."""
    carried = [channel.transmission for channel in channels_of(publisher)]
    return any(transmission is not None and transmission.sent for transmission in carried)
