"""From the database to brokers, compared with the limit of each: what its client alone does with the same messages.

The client sends them from memory and waits for every confirm. RabbitMQ's are encoded in advance and written to a bare
socket; the others' clients encode them. Kafka is KAFKA_URL, or three brokers that are started for this.

A backlog is read from the table, even with the source log.
"""

import argparse
from collections.abc import Collection
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

from django.db import connection
from django.utils.module_loading import import_string

from django_outbox.conf import SOURCES
from django_outbox.relay import Relay
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import Run, timed
from tests.benchmarks.messages import claimed, fill, make_messages, make_topics
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, restore, save
from tests.benchmarks.workspace import outbox_settings

BROKERS = {
    "rabbitmq": "rabbitmq.QuorumQueues",
    "rabbitmq-classic": "rabbitmq.ClassicQueues",
    "redis": "redis.RedisStreams",
    "nats": "nats.JetStream",
    "kafka": "kafka.Kafka",
}
"""Classes in `brokers`. Their clients are imported when they are used."""


def make_broker(name: str, destinations: int = 4) -> Broker:
    broker: Broker = import_string(f"tests.benchmarks.brokers.{BROKERS[name]}")(destinations)
    return broker


class Case(NamedTuple):
    """The limit, or the drain of a saved table."""

    broker: str
    work: str = "limit"
    workers: int = 1
    source: str = ""

    def __str__(self) -> str:
        more = [f"workers: {self.workers}", self.source] if self.source else []
        return ", ".join([f"{self.broker}: {self.work}", *more])


def add_comparison(parser: argparse.ArgumentParser, brokers: Collection[str] = BROKERS) -> None:
    parser.add_argument(
        "--broker", nargs="+", choices=brokers, default=["rabbitmq"], help="Where to (default: rabbitmq)."
    )
    parser.add_argument(
        "--source", nargs="+", choices=SOURCES, default=["table"], help="Sources to compare (default: table)."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_comparison(parser)
    # So many messages that the beginning and the end of a drain, when nothing is in flight, hardly count.
    add_numbers(parser, messages=100_000, keys=1000, workers=[2], batch_size=2000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    content: dict[str, Any] = {"seed": options.seed, "topics": make_topics()}
    with ExitStack() as stack:
        brokers: dict[str, Broker] = {name: stack.enter_context(make_broker(name)) for name in options.broker}
        save("unkeyed", options.messages, **content)
        save("keyed", options.messages, keys=options.keys, **content)

        def measure(case: Case) -> Run:
            broker = brokers[case.broker]
            if case.work == "limit":
                return broker.measure_limit(claimed(make_messages(options.messages, **content)))
            return _drain(broker, case, options.batch_size)

        cases = []
        for name in brokers:
            works = product(("unkeyed", "keyed"), options.workers, options.source)
            cases += [Case(name), *(Case(name, *each) for each in works)]
        return compare(
            f"From {connection.display_name} to the broker, every message confirmed",
            cases * options.repeats,
            measure,
            lambda case: Case(case.broker),
            ratio="of the limit",
        )


def _drain(broker: Broker, case: Case, batch_size: int) -> Run:
    """Deliver a saved table by a relay in this process, which is connected before the clock starts."""
    with (
        outbox_settings({**broker.publisher(), "SOURCE": case.source}),
        Relay(workers=case.workers, batch_size=batch_size) as relay,
    ):
        empty()
        fill(1, topics=broker.topics)
        warm = relay.deliver_once().processed
        restore(case.work, streamed=case.source != "table")
        broker.purge()
        run = timed(lambda: relay.drain().processed - warm, broker.process)
        broker.expect(run.messages)
    return run
