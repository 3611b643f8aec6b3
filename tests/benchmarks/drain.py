"""From the database to brokers, compared with the limit of each: what its client alone does with the same messages.

The client sends them from memory and waits for every confirm. RabbitMQ's are encoded in advance and written to a bare
socket; the others' clients encode them. `publisher`: the outbox's publisher alone does the same, without a database.
Kafka is KAFKA_URL, or three brokers that are started for this if their programs are in the cache, otherwise a mock of
them.

A backlog is read from the table, even with the source log. With `--running`, messages are also committed while a relay
runs, and come from the log.
"""

import argparse
from collections.abc import Collection
from contextlib import ExitStack
from itertools import product
from typing import Any, NamedTuple

from django.db import connection
from django.utils.module_loading import import_string

from django_outbox.conf import SOURCES
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import Run
from tests.benchmarks.messages import claimed, make_messages, make_topics
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relays import timed_drain, timed_flow
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import save

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
    """The limit, the publisher alone, the drain of a saved table, or its delivery while it is written."""

    broker: str
    work: str = "limit"
    workers: int = 1
    source: str = ""
    running: bool = False

    def __str__(self) -> str:
        more = [f"workers: {self.workers}"] if self.work != "limit" else []
        more += [self.source] if self.source else []
        more += ["running"] if self.running else []
        return ", ".join([f"{self.broker}: {self.work}", *more])


def add_comparison(parser: argparse.ArgumentParser, brokers: Collection[str] = BROKERS) -> None:
    """Add the brokers and the sources to compare."""
    parser.add_argument(
        "--broker", nargs="+", choices=brokers, default=["rabbitmq"], help="Where to (default: rabbitmq)."
    )
    parser.add_argument(
        "--source", nargs="+", choices=SOURCES, default=["table"], help="Sources to compare (default: table)."
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_comparison(parser)
    parser.add_argument("--running", action="store_true", help="Also measure relays that run while messages arrive.")
    # So many messages that the beginning and the end of a drain, when nothing is in flight, hardly count.
    add_numbers(parser, messages=100_000, keys=1000, workers=[2], batch_size=2000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    content: dict[str, Any] = {"seed": options.seed, "topics": make_topics()}
    with ExitStack() as stack:
        brokers: dict[str, Broker] = {name: stack.enter_context(make_broker(name)) for name in options.broker}
        save("unkeyed", options.messages, **content)
        save("keyed", options.messages, keys=options.keys, **content)

        def measure(case: Case) -> Run:
            broker, sizes = brokers[case.broker], {"workers": case.workers, "batch_size": options.batch_size}
            if case.running:
                return timed_flow(broker, case.work, options.messages, source=case.source, **sizes)
            if case.work in ("unkeyed", "keyed"):
                return timed_drain(broker, case.work, source=case.source, **sizes)
            made = claimed(make_messages(options.messages, **content))
            return broker.measure_limit(made) if case.work == "limit" else broker.measure_publisher(made, **sizes)

        cases = []
        for name in brokers:
            cases += [Case(name), *(Case(name, "publisher", workers) for workers in options.workers)]
            works = [*product(("unkeyed", "keyed"), options.workers, options.source)]
            cases += [Case(name, *each) for each in works]
            if options.running:
                cases += [Case(name, *each, running=True) for each in works]
        return compare(
            f"From {connection.display_name} to the broker, every message confirmed",
            cases * options.repeats,
            measure,
            lambda case: Case(case.broker),
            ratio="of the limit",
        )
