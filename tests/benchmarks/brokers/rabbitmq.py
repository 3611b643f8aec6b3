"""RabbitMQ. The limit: frames encoded in advance, written to a bare socket. No client library can cost less."""

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

import pika
from pika.exceptions import AMQPConnectionError
from pika.frame import Body, Header, Method
from pika.spec import Basic

from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import BenchmarkError

BLOCK = 100
"""Messages that are written to the socket in one piece."""

WINDOW = 4000
"""Unconfirmed messages."""

CONFIRM = struct.Struct(">BHIHHQBB")
"""A frame with a confirm: type, channel, size, class, method, delivery tag, whether multiple, end."""


class RabbitMQ(Broker):
    """Durable queues of one kind, bound to a durable direct exchange by a topic each."""

    setting = "AMQP_URL"
    example = "amqp://guest:guest@127.0.0.1:5672/%2F"
    process = "beam.smp"
    errors = (AMQPConnectionError,)
    kind: ClassVar[str]

    def __init__(self, destinations: int = 4) -> None:
        super().__init__(destinations)
        self.name = f"{self.name}-{self.kind}"
        self.queues = [f"{self.name}-{topic}" for topic in self.topics]

    def create(self) -> str:
        self._connection = self._connect()
        self._channel = self._connection.channel()
        self._channel.exchange_declare(self.name, "direct", durable=True)
        for queue, topic in zip(self.queues, self.topics, strict=True):
            self._channel.queue_declare(queue, durable=True, arguments={"x-queue-type": self.kind})
            self._channel.queue_bind(queue, self.name, topic)
        return str(_implementation(self._connection).server_properties["version"])

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A signal may have interrupted this connection in the middle of a call: closing it would wait forever for the
        # response. The end of the process closes it.
        if kind is None or issubclass(kind, Exception):
            self._connection.close()
        super().__exit__(kind)

    def delete(self) -> None:
        with self._connect() as connection:
            channel = connection.channel()
            for queue in self.queues:
                channel.queue_delete(queue)
            channel.exchange_delete(self.name)

    def publisher(self, **options: Any) -> dict[str, Any]:
        given = {"url": self.url, "exchange": self.name}
        return {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        for queue in self.queues:
            self._channel.queue_purge(queue)

    def count(self) -> int:
        return sum(self._channel.queue_declare(queue, passive=True).method.message_count for queue in self.queues)

    @contextmanager
    def sender(self, messages: Sequence[Message]) -> Iterator[Callable[[], None]]:
        frame_max = pika.URLParameters(self.url).frame_max or 131_072
        left = iter(messages)
        blocks = list(iter(lambda: [_frames(self.name, each, frame_max) for each in islice(left, BLOCK)], []))

        def send() -> None:
            sent, confirms = 0, Confirms(len(messages))
            for block in blocks:
                sent += len(block)
                while sent - confirms.count > WINDOW:
                    confirms.feed(socket.recv(262_144))
                socket.sendall(b"".join(block))
            while confirms.count < sent:
                confirms.feed(socket.recv(262_144))

        with self._connect() as connection:
            connection.channel().confirm_delivery()
            # From here on pika neither reads nor writes, until it closes the connection.
            socket = _implementation(connection)._transport._sock
            socket.setblocking(True)
            yield send
            socket.setblocking(False)

    def _connect(self) -> pika.BlockingConnection:
        parameters = pika.URLParameters(self.url)
        # Nothing serves this connection while a benchmark runs.
        parameters.heartbeat = 0
        return pika.BlockingConnection(parameters)


class QuorumQueues(RabbitMQ):
    label = "RabbitMQ, quorum queues"
    kind = "quorum"


class ClassicQueues(RabbitMQ):
    label = "RabbitMQ, classic queues"
    kind = "classic"


class Confirms:
    """Counts confirmed messages. Confirms come in any order, for one message or for all up to one."""

    def __init__(self, total: int) -> None:
        self.count = 0
        self._lowest = 1
        self._seen = bytearray(total + 1)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        if not data:
            raise BenchmarkError("The broker closed the connection.")
        data = self._rest + data
        whole = len(data) - len(data) % CONFIRM.size
        self._rest = data[whole:]
        for _, _, _, cls, method, tag, multiple, _ in CONFIRM.iter_unpack(data[:whole]):
            # Any other frame has another length; nothing after it is read, because the measurement has failed.
            if cls != Basic.INDEX or method != Basic.Ack.INDEX & 0xFFFF:
                raise BenchmarkError(f"The broker did not accept a message: {data[:whole]!r:.300}")
            if multiple:
                stop = max(self._lowest, tag + 1)
                self.count += self._seen.count(0, self._lowest, stop)
                self._seen[self._lowest : stop] = b"\1" * (stop - self._lowest)
                self._lowest = stop
            elif not self._seen[tag]:
                self._seen[tag] = 1
                self.count += 1


def _frames(exchange: str, message: Message, frame_max: int) -> bytes:
    """Return the frames of a message with the properties that the outbox sets."""
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"outbox-key": message.key} if message.key else {},
        delivery_mode=2,
        message_id=message.message_id,
        timestamp=int(message.occurred_at.timestamp()),
        type=message.type,
    )
    size = frame_max - 8
    bodies = [Body(1, message.payload[start : start + size]) for start in range(0, len(message.payload), size)]
    publish = Method(1, Basic.Publish(exchange=exchange, routing_key=message.topic, mandatory=True))
    return b"".join(frame.marshal() for frame in (publish, Header(1, len(message.payload), properties), *bodies))


def _implementation(connection: Any) -> Any:
    """Return the connection that pika hides: it knows the server's properties and has the socket."""
    return connection._impl
