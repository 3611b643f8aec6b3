"""From a queue to the table, compared with a bare pika consumer that only acknowledges."""

import argparse
import time
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import pika
from django.conf import settings
from django.db import connection
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.models import HandledMessage
from tests.benchmarks.broker_limit import encode_blocks, measure_limit
from tests.benchmarks.measuring import BenchmarkError, measure_all
from tests.benchmarks.messages import make_messages
from tests.benchmarks.options import add_numbers
from tests.benchmarks.queues import KINDS, Queues
from tests.benchmarks.report import Report
from tests.benchmarks.workspace import require_broker

READERS = ("bare pika", "inbox", "inbox, remember")


class Case(NamedTuple):
    """A kind of queue, and what reads it."""

    kind: str
    reader: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(30_000, "Messages of a case."),
        size=(250, "Bytes of a payload."),
        repeats=(3, "Rounds; the median of each case counts."),
        keys=(1000, "Keys of the messages."),
        batch_size=(1000, "Messages in a transaction, or in an acknowledgement of the bare consumer."),
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="Kinds of queues (default: all)")


def run(options: argparse.Namespace) -> Report:
    url = require_broker()
    with Queues(url, "classic", 1) as classic, Queues(url, "quorum", 1) as quorum:
        queues = {"classic": classic, "quorum": quorum}

        def measure(case: Case) -> float:
            queue = queues[case.kind]
            made = make_messages(
                options.messages, seed=options.seed, size=options.size, keys=options.keys, topics=queue.topics
            )
            measure_limit(url, queue, encode_blocks(queue.exchange, made), connections=1, window=2000)
            name = f"{queue.exchange}-{queue.topics[0]}"
            if case.reader == "bare pika":
                return BareConsumer(url, name, options.messages, options.batch_size).rate()
            return _rate_of_inbox(url, name, options, remember=case.reader != "inbox")

        cases = [Case(*each) for each in product(options.kinds, READERS)]
        rates = measure_all(cases * options.repeats, measure)
    return _report(options, {case: median(found) for case, found in rates.items()})


def _rate_of_inbox(url: str, queue: str, options: argparse.Namespace, *, remember: bool) -> float:
    OutboxMessage.objects.all().delete()
    HandledMessage.objects.all().delete()
    given = {
        "url": url,
        "queue": queue,
        "publisher": "default",
        "remember": remember,
        "batch_size": options.batch_size,
        "max_backlog": 10**9,
    }
    consumers = {
        "billing": {"BACKEND": "django_outbox.inbox.rabbitmq.RabbitMQConsumer", "OPTIONS": given},
    }
    with override_settings(OUTBOX={**settings.OUTBOX, "CONSUMERS": consumers}):
        inbox = Inbox(max_messages=options.messages)
        start = time.perf_counter()
        inbox.run()
        seconds = time.perf_counter() - start
    if (found := OutboxMessage.objects.count()) != options.messages:
        raise BenchmarkError(f"{options.messages:,} messages were read, and the table has {found:,}.")
    return float(options.messages / seconds)


class BareConsumer:
    """Reads messages with pika's SelectConnection, and acknowledges them in batches."""

    def __init__(self, url: str, queue: str, messages: int, batch_size: int) -> None:
        self._url = url
        self._queue = queue
        self._messages = messages
        self._batch_size = batch_size
        self._received = 0

    def rate(self) -> float:
        """Read all messages, and return the rate in messages a second."""
        start = time.perf_counter()
        connection: Any = pika.SelectConnection(
            pika.URLParameters(self._url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._on_channel),
            on_close_callback=lambda connection, _: connection.ioloop.stop(),
        )
        connection.ioloop.start()
        seconds = time.perf_counter() - start
        connection.ioloop.close()
        if self._received != self._messages:
            raise BenchmarkError("The broker closed the connection.")
        return self._messages / seconds

    def _on_channel(self, channel: Any) -> None:
        channel.basic_qos(prefetch_count=2 * self._batch_size)
        channel.basic_consume(self._queue, self._on_message)

    def _on_message(self, channel: Any, method: Any, _properties: Any, _body: bytes) -> None:
        self._received += 1
        if self._received % self._batch_size == 0 or self._received == self._messages:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if self._received == self._messages:
            channel.connection.close()


def _report(options: argparse.Namespace, rates: dict[Case, float]) -> Report:
    report = Report(
        title=f"From RabbitMQ to {connection.display_name}, one process",
        columns=["queues", "reader", "msg/s", "of bare pika"],
    )
    for case, rate in rates.items():
        ratio = rate / rates[Case(case.kind, "bare pika")]
        report.rows.append([case.kind, case.reader, rate, ratio])
        name = f"{case.kind}_{case.reader.replace(', ', '_').replace(' ', '_')}"
        report.figures |= {f"{name}_rate": rate, f"{name}_ratio": ratio}
    report.notes.append(
        f"{options.messages:,} messages of {options.size:,} bytes with {options.keys:,} keys a case, in batches of "
        f"{options.batch_size:,}; median of {options.repeats}."
    )
    return report
