"""The same drain with one setting changed: rate and processor time of each part.

Nothing changed: 2 workers, batches of 2,000 messages, 4 quorum queues.
"""

import argparse
import random
from datetime import timedelta
from typing import Any

from django.db import connection

from tests.benchmarks.brokers.rabbitmq import ClassicQueues, QuorumQueues
from tests.benchmarks.measuring import Run
from tests.benchmarks.messages import make_topics
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relays import timed_drain
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import save
from tests.benchmarks.workspace import require_server

TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"keys": 1000},
    "one_queue": {"topics": make_topics(1)},
    "large": {"size": 2500},
}
"""The messages of each saved table."""

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "1 worker": {"workers": 1},
    "4 workers": {"workers": 4},
    "batches of 100": {"batch_size": 100},
    "batches of 500": {"batch_size": 500},
    "batches of 1,000": {"batch_size": 1000},
    "batches of 5,000": {"batch_size": 5000},
    "1,000 keys": {"table": "keyed"},
    "RETENTION of zero": {"RETENTION": timedelta(0)},
    "classic queues": {"kind": "classic"},
    "1 queue": {"table": "one_queue"},
    "payloads of 2,500 bytes": {"table": "large"},
}
"""The changed setting, and its arguments of `timed_drain`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=50_000, repeats=7)


def run(options: argparse.Namespace) -> Report:
    require_server()
    with ClassicQueues() as classic, QuorumQueues() as quorum:
        for table, content in TABLES.items():
            save(table, options.messages, **({"seed": options.seed, "topics": make_topics()} | content))

        def measure(case: str) -> Run:
            arguments = {"table": "plain", **CASES[case]}
            return timed_drain(classic if arguments.pop("kind", "") else quorum, **arguments)

        # A drain burdens the one after it, which must not always be the same one.
        order = random.Random(options.seed)
        rounds = [list(CASES), *(order.sample(list(CASES), len(CASES)) for _ in range(options.repeats - 1))]
        return compare(
            f"The drain from {connection.display_name} to quorum queues, with one setting changed",
            [case for each in rounds for case in each],
            measure,
        )
