"""The drain on tables that are large, or hard in another way, compared with a fresh one.

`processed`: rows are kept. `pending`: rows are due. `backoff`: a tenth of the rows wait for a retry, half of them with
keys. `waiting`: a tenth of the rows have a key each and wait, and the delivered messages have keys as well. `snapshot`:
another transaction is held open for the whole run, and the last quarter of it counts. A fresh table has the delivered
messages and nothing else. The relay runs in its own process.
"""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from django.db import connection

from tests.benchmarks.brokers.rabbitmq import QuorumQueues
from tests.benchmarks.measuring import Run, wait_for
from tests.benchmarks.messages import fill
from tests.benchmarks.options import add_numbers, add_source
from tests.benchmarks.relay_process import relay_process
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, insert_many, pass_all, refresh
from tests.benchmarks.workspace import outbox_settings, require_server
from tests.support.many_rows import TABLE

LARGE_BYTES = 200_000_000
"""Bytes of large payloads that are delivered."""

SIZES = {"10kB": 10_000, "1MiB": 1_000_000}

CASES = ("processed", "pending", "backoff", "waiting", "snapshot", *SIZES)


@dataclass(frozen=True)
class Case:
    """A table; a fresh one is named after that with which it is compared."""

    name: str
    fresh: bool = False

    def __str__(self) -> str:
        return f"fresh ({self.name})" if self.fresh else self.name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=50_000, rows=10_000_000, repeats=3)
    add_source(parser)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="Tables (default: all).")


def run(options: argparse.Namespace) -> Report:
    require_server()
    sequence: list[Case] = []
    for name in options.cases:
        # Before and after, so that a drift of the machine's speed affects both.
        fresh = [_base(Case(name))] * options.repeats if name not in SIZES else []
        sequence += [*fresh, *[Case(name)] * options.repeats, *fresh]
    with QuorumQueues() as queues:
        prepared: set[Case] = set()
        return compare(
            f"The drain from {connection.display_name} on a hard table",
            sequence,
            lambda case: _drain(case, queues, options, prepared),
            _base,
            ratio="of fresh",
        )


def _base(case: Case) -> Case:
    """Return the fresh table; messages of another size have none."""
    return Case(case.name, fresh=case.name not in SIZES)


def _drain(case: Case, queues: QuorumQueues, options: argparse.Namespace, prepared: set[Case]) -> Run:
    name = "" if case.fresh else case.name
    size = SIZES.get(name, 250)
    messages = min(options.messages, LARGE_BYTES // size) * (4 if name == "snapshot" else 1)
    if name not in ("processed", "pending", "backoff", "waiting"):
        empty()
    elif case not in prepared:
        # Millions of rows are made once, and stay for the next round.
        prepared.add(case)
        empty()
        _insert(name, options.rows, streamed=options.source != "table")
    publisher = {**queues.publisher(), "SOURCE": options.source}
    if name != "pending":
        keys = messages // 10 if case.name == "waiting" else 0
        with outbox_settings(publisher):
            fill(messages, seed=options.seed, size=size, keys=keys, topics=queues.topics)
    refresh()
    queues.purge()
    batch_size = min(2000, messages // 8)
    with (
        _old_snapshot() if name == "snapshot" else nullcontext(),
        relay_process(publisher, batch_size=batch_size) as relay,
    ):
        relay.begin()
        # An old snapshot costs the more the longer it is held.
        wait_for(lambda: relay.delivered, messages * 3 // 4 if name == "snapshot" else 0)
        done, began = relay.delivered, time.perf_counter()
        wait_for(lambda: relay.delivered, messages)
        run = Run(messages - done, time.perf_counter() - began)
        report = relay.stop()
    return replace(run, figures={"MB/s": run.rate * size / 1e6, "peak MB": report.peak_megabytes})


def _insert(name: str, rows: int, *, streamed: bool) -> None:
    if name == "processed":
        insert_many(rows, processed="" if streamed else "-1.0 - n % 86400")
        if streamed:
            pass_all()
    elif name == "pending":
        insert_many(rows, available="" if streamed else "-3600 + n / 1000.0", topic="orders-0")
    elif name == "waiting":
        insert_many(rows // 10, available="86400 + n % 600", keys=rows // 10)
    else:
        for keyed in (False, True):
            insert_many(rows // 20, available="3600 + n % 600", attempts=1, keys=1000 * keyed)


@contextmanager
def _old_snapshot() -> Iterator[None]:
    other = connection.copy()
    with other.cursor() as cursor:
        if other.vendor == "postgresql":
            cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("BEGIN")
        cursor.execute(f"SELECT count(*) FROM {TABLE}")
        cursor.fetchall()
        yield
        cursor.execute("ROLLBACK")
    other.close()
