"""From a queue to the table, compared with a bare pika consumer that only acknowledges."""

import argparse
import time
from itertools import product
from typing import Any, NamedTuple

import pika
from django.conf import settings
from django.db import connection
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.models import HandledMessage
from django_outbox.utils.threads import Threads
from tests.benchmarks.brokers.rabbitmq import ClassicQueues, QuorumQueues, RabbitMQ
from tests.benchmarks.measuring import BenchmarkError, Run, timed
from tests.benchmarks.messages import claimed, make_messages
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare

PATIENCE = 120
"""Seconds that reading all messages may take."""


class Case(NamedTuple):
    """A kind of queue, and what reads it."""

    kind: str
    reader: str

    def __str__(self) -> str:
        return f"{self.kind} queue: {self.reader}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=30_000, keys=1000, batch_size=1000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    with ClassicQueues(1) as classic, QuorumQueues(1) as quorum:
        queues: dict[str, RabbitMQ] = {each.kind: each for each in (classic, quorum)}

        def measure(case: Case) -> Run:
            queue = queues[case.kind]
            made = make_messages(options.messages, seed=options.seed, keys=options.keys, topics=queue.topics)
            queue.measure_limit(claimed(made))
            if case.reader == "bare pika":
                return timed(lambda: _acknowledge(queue, options.messages, options.batch_size), queue.process)
            return _read(queue, options, remember=case.reader != "inbox")

        cases = [Case(*each) for each in product(queues, ("bare pika", "inbox", "inbox, remember"))]
        return compare(
            f"From RabbitMQ to {connection.display_name}, one process",
            cases * options.repeats,
            measure,
            lambda case: case._replace(reader="bare pika"),
            ratio="of bare pika",
        )


def _read(queue: RabbitMQ, options: argparse.Namespace, *, remember: bool) -> Run:
    OutboxMessage.objects.all().delete()
    HandledMessage.objects.all().delete()
    given = {
        "url": queue.url,
        "queue": queue.queues[0],
        "publisher": "default",
        "remember": remember,
        "batch_size": options.batch_size,
        "max_backlog": 10**9,
    }
    consumers = {"billing": {"BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer", "OPTIONS": given}}

    def read() -> int:
        # As a service, because a limit of messages lets the broker send no more than a batch ahead.
        threads.start(inbox.run, name="inbox")
        deadline = time.monotonic() + PATIENCE
        while inbox.tally.stored < options.messages and time.monotonic() < deadline and not threads.errors:
            time.sleep(0.002)
        return int(options.messages)

    threads = Threads()
    with override_settings(OUTBOX={**settings.OUTBOX, "CONSUMERS": consumers}):
        inbox = Inbox()
        try:
            run = timed(read, queue.process)
        finally:
            inbox.stop()
            threads.wait(PATIENCE)
    if (found := OutboxMessage.objects.count()) != run.messages:
        raise BenchmarkError(f"{run.messages:,} messages were read, and the table has {found:,}.")
    return run


def _acknowledge(queue: RabbitMQ, messages: int, batch_size: int) -> int:
    """Read all messages with pika's SelectConnection, acknowledge them in batches, and return their number."""
    received = 0

    def on_message(channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        nonlocal received
        received += 1
        if received % batch_size == 0 or received == messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if received == messages:
            channel.connection.close()

    def on_channel(channel: Any) -> None:
        channel.basic_qos(prefetch_count=2 * batch_size)
        channel.basic_consume(queue.queues[0], on_message)

    connection: Any = pika.SelectConnection(
        pika.URLParameters(queue.url),
        on_open_callback=lambda connection: connection.channel(on_open_callback=on_channel),
        on_close_callback=lambda connection, _: connection.ioloop.stop(),
    )
    connection.ioloop.start()
    connection.ioloop.close()
    if received != messages:
        raise BenchmarkError("The broker closed the connection.")
    return received
