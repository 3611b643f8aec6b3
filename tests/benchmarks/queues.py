"""Temporary queues of one kind behind an exchange."""

import os
import time

import pika
from pika.exceptions import AMQPConnectionError

from tests.benchmarks.measuring import BenchmarkError

KINDS = ("classic", "quorum")

PATIENCE = 30.0
"""Seconds within which the queues must count all messages that were confirmed."""


def topics(count: int) -> list[str]:
    return [f"orders.{number}" for number in range(count)]


class Queues:
    """Durable queues, bound to one durable direct exchange by a topic each. Leaving the context deletes them."""

    def __init__(self, url: str, kind: str, count: int) -> None:
        self.exchange = f"outbox-benchmark-{os.getpid()}-{kind}"
        self.topics = topics(count)
        self._parameters = pika.URLParameters(url)
        # Nothing serves this connection while a benchmark runs.
        self._parameters.heartbeat = 0
        try:
            self._connection = pika.BlockingConnection(self._parameters)
        except AMQPConnectionError as error:
            raise BenchmarkError(f"The broker of AMQP_URL does not answer: {error!r}") from error
        self._channel = self._connection.channel()
        self._names = [f"{self.exchange}-{topic}" for topic in self.topics]
        self._kind = kind

    def __enter__(self) -> "Queues":
        try:
            self._channel.exchange_declare(self.exchange, "direct", durable=True)
            for name, topic in zip(self._names, self.topics, strict=True):
                self._channel.queue_declare(name, durable=True, arguments={"x-queue-type": self._kind})
                self._channel.queue_bind(name, self.exchange, topic)
        except BaseException as error:
            self.__exit__(type(error))
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # A signal may have interrupted this connection in the middle of a call: closing it would wait forever for the
        # answer. The end of the process closes it.
        if kind is None or issubclass(kind, Exception):
            self._connection.close()
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            for name in self._names:
                channel.queue_delete(name)
            channel.exchange_delete(self.exchange)

    def purge(self) -> None:
        for name in self._names:
            self._channel.queue_purge(name)

    def count(self) -> int:
        """Return the number of messages in the queues."""
        return sum(self._channel.queue_declare(name, passive=True).method.message_count for name in self._names)

    def expect(self, count: int) -> None:
        """Raise a BenchmarkError unless the queues hold this many messages."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.count()) != count:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{count:,} messages were delivered, and the queues hold {found:,}.")
            time.sleep(0.01)
