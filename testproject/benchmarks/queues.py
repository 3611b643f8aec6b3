"""Queues of one kind behind an exchange, which are gone afterwards."""

import os
import time

import pika
from django.core.management.base import CommandError
from pika.exceptions import AMQPConnectionError

KINDS = ("classic", "quorum")

PATIENCE = 30.0
"""Seconds within which a queue must tell of all messages that were confirmed."""


def topics(count: int) -> list[str]:
    """Return the routing keys of so many queues."""
    return [f"orders.{number}" for number in range(count)]


class Queues:
    """Durable queues, each bound to one durable direct exchange by a topic of its own.

    Use it as a context manager: it deletes them in the end.

    Args:
        url: the broker's.
        kind: `classic` or `quorum`.
        count: how many.

    Attributes:
        exchange: the name of the exchange.
        topics: the routing keys, one a queue.

    Raises:
        CommandError: the broker does not answer.
    """

    def __init__(self, url: str, kind: str, count: int) -> None:
        self.exchange = f"outbox-benchmark-{os.getpid()}-{kind}"
        self.topics = topics(count)
        self._parameters = pika.URLParameters(url)
        # Nobody serves this connection while a benchmark runs.
        self._parameters.heartbeat = 0
        try:
            self._connection = pika.BlockingConnection(self._parameters)
        except AMQPConnectionError as error:
            raise CommandError(f"The broker of AMQP_URL does not answer: {error!r}") from error
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
        # A signal may have interrupted this connection amid a call: it would wait for ever for the answer. The end of
        # the process closes it.
        if kind is None or issubclass(kind, Exception):
            self._connection.close()
        with pika.BlockingConnection(self._parameters) as connection:
            channel = connection.channel()
            for name in self._names:
                channel.queue_delete(name)
            channel.exchange_delete(self.exchange)

    def purge(self) -> None:
        """Empty them."""
        for name in self._names:
            self._channel.queue_purge(name)

    def count(self) -> int:
        """Return how many messages they hold."""
        answers = [self._channel.queue_declare(name, passive=True).method for name in self._names]
        return sum(answer.message_count for answer in answers)

    def expect(self, count: int) -> None:
        """See that they hold so many messages.

        Raises:
            CommandError: they do not, and the figures are worth nothing.
        """
        deadline = time.monotonic() + PATIENCE
        while (found := self.count()) != count:
            if time.monotonic() > deadline:
                raise CommandError(f"{count:,} messages were delivered, and the queues hold {found:,}.")
            time.sleep(0.01)
