"""Cost of a message for the caller, compared with a plain create()."""

import argparse
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from statistics import median

from django.db import connection, connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.benchmarks.measuring import measure_all
from tests.benchmarks.messages import make_messages
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report
from tests.benchmarks.tables import empty, refresh

CHUNK = 1000
"""Rows in one INSERT, on both sides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(1000, "Transactions of one message each, in a round of each kind."),
        many=(10_000, "Messages in a transaction of many."),
        size=(250, "Bytes of a payload."),
        writers=(16, "Processes that write at the same time."),
        repeats=(7, "Rounds; the median of each case counts."),
    )


def run(options: argparse.Namespace) -> Report:
    writers = options.writers if connection.vendor != "sqlite" else 1
    counts = {"create": options.messages, "enqueue": options.messages}
    counts |= {"bulk_create": options.many, "enqueue_many": options.many}
    # No process may inherit a connection.
    connections.close_all()
    with ProcessPoolExecutor(writers, mp_context=get_context("fork")) as pool:
        list(pool.map(_warm_up, range(writers)))

        def measure(case: tuple[str, int]) -> float:
            """Return the seconds of a message."""
            name, processes = case
            share: int = -(-counts[name] // processes)
            empty()
            refresh()
            start = time.perf_counter()
            list(pool.map(_write, [(name, share, options.seed, options.size)] * processes))
            return (time.perf_counter() - start) / (share * processes)

        cases = list(product(WRITERS, sorted({1, writers})))
        seconds = {case: median(found) for case, found in measure_all(cases * options.repeats, measure).items()}
    report = Report(
        title=f"Cost of a message for the caller on {connection.display_name}, its commit included",
        columns=["call", "writers", "µs a message", "ratio to a plain row"],
    )
    plain = {"create": "create", "enqueue": "create", "bulk_create": "bulk_create", "enqueue_many": "bulk_create"}
    for (call, count), spent in seconds.items():
        ratio = spent / seconds[plain[call], count]
        report.rows.append([f"{call}()", count, spent * 1e6, ratio])
        if call != plain[call]:
            name = f"{call}_writers_{count}"
            report.figures |= {f"{name}_microseconds": spent * 1e6, f"{name}_cost_ratio": ratio}
            report.figures[f"{name}_rate_ratio"] = 1 / ratio
    report.notes.append(
        f"create() and enqueue(): a transaction for each message; the others: {options.many:,} messages in one, "
        f"{CHUNK:,} an INSERT. Payloads of {options.size:,} bytes; median of {options.repeats}."
    )
    return report


def _warm_up(_number: int) -> None:
    for writer in WRITERS.values():
        writer(1, 0, 100)
    # Long enough that each process gets one of these.
    time.sleep(0.2)


def _write(task: tuple[str, int, int, int]) -> None:
    name, count, seed, size = task
    WRITERS[name](count, seed, size)


def _create(count: int, seed: int, size: int) -> None:
    for message in make_messages(count, seed=seed, size=size):
        with transaction.atomic():
            OutboxMessage.objects.create(type=message.type, key=message.key, payload=message.payload)


def _enqueue(count: int, seed: int, size: int) -> None:
    for message in make_messages(count, seed=seed, size=size):
        with transaction.atomic():
            enqueue(message.type, message.payload, key=message.key)


def _bulk_create(count: int, seed: int, size: int) -> None:
    with transaction.atomic():
        OutboxMessage.objects.bulk_create(make_messages(count, seed=seed, size=size), batch_size=CHUNK)


def _enqueue_many(count: int, seed: int, size: int) -> None:
    with transaction.atomic():
        enqueue_many(make_messages(count, seed=seed, size=size))


WRITERS: dict[str, Callable[[int, int, int], None]] = {
    "create": _create,
    "enqueue": _enqueue,
    "bulk_create": _bulk_create,
    "enqueue_many": _enqueue_many,
}
