"""`benchmark enqueue`: what a message costs the caller, beside saving a plain row of the same size."""

import argparse
import os
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from statistics import median
from typing import Any

from django.db import connection, connections, transaction
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.messages import make_messages
from benchmarks.report import Report
from benchmarks.tables import empty, refresh
from benchmarks.workspace import ACCEPTING, outbox_settings
from django_outbox import OutboxMessage, enqueue, enqueue_many

OPTIONS = ("messages", "many", "size", "writers", "repeats")

CHUNK = 1000
"""Rows in one INSERT, on both sides."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        messages=(1000, "Transactions of one message each, in a round of each kind."),
        many=(10_000, "Messages in a transaction of many."),
        size=(250, "Bytes of a payload."),
        writers=(16, "Processes that write at the same time."),
        repeats=(7, "Rounds, of which the median counts."),
    )


def run(options: dict[str, Any]) -> Report:
    """Take turns with each pair, so that whatever disturbs the machine hits both alike."""
    writers = options["writers"] if connection.vendor != "sqlite" else 1
    seconds: dict[str, list[float]] = defaultdict(list)
    with outbox_settings(ACCEPTING):
        work = {name: (count, options["seed"], options["size"]) for name, count in _counts(options).items()}
        for name, arguments in work.items():
            WRITERS[name](*arguments)
        # Before anything is measured, for a process that starts has much to do.
        connections.close_all()
        with (
            ProcessPoolExecutor(writers, mp_context=get_context("fork"), initializer=_start) as pool,
            ProgressBar("  measuring", options["repeats"] * 2 * len(work)) as bar,
        ):
            list(pool.map(_wait, range(writers)))
            for _ in range(options["repeats"]):
                for name, (count, seed, size) in work.items():
                    empty()
                    refresh()
                    seconds[name].append(_timed(lambda: WRITERS[name](count, seed, size)) / count)  # noqa: B023
                    bar.advance()
                    share = -(-count // writers)
                    tasks = [(name, share, seed, size)] * writers
                    seconds[f"{name} by {writers}"].append(
                        _timed(lambda: list(pool.map(_write, tasks))) / (share * writers)  # noqa: B023
                    )
                    bar.advance()
    return _report(options, writers, {name: median(found) for name, found in seconds.items()})


def _counts(options: dict[str, Any]) -> dict[str, int]:
    one, many = options["messages"], options["many"]
    return {"create": one, "enqueue": one, "bulk_create": many, "enqueue_many": many}


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _start() -> None:
    connections.close_all()


def _wait(_number: int) -> int:
    connection.ensure_connection()
    # Long enough for each process to get one of these.
    time.sleep(0.2)
    return os.getpid()


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
        OutboxMessage.objects.bulk_create(islice(make_messages(count, seed=seed, size=size), count), batch_size=CHUNK)


def _enqueue_many(count: int, seed: int, size: int) -> None:
    with transaction.atomic():
        enqueue_many(make_messages(count, seed=seed, size=size))


WRITERS: dict[str, Callable[[int, int, int], None]] = {
    "create": _create,
    "enqueue": _enqueue,
    "bulk_create": _bulk_create,
    "enqueue_many": _enqueue_many,
}


def _report(options: dict[str, Any], writers: int, seconds: dict[str, float]) -> Report:
    report = Report(
        name="enqueue",
        title=f"What a message costs the caller on {connection.display_name}, its commit included",
        columns=["what", "writers", "µs a message", "beside a plain row"],
    )
    for plain, ours in (("create", "enqueue"), ("bulk_create", "enqueue_many")):
        for suffix, count in (("", 1), (f" by {writers}", writers)):
            ratio = seconds[ours + suffix] / seconds[plain + suffix]
            report.rows.append([f"{plain}()", count, seconds[plain + suffix] * 1e6, 1.0])
            report.rows.append([f"{ours}()", count, seconds[ours + suffix] * 1e6, ratio])
            name = f"{ours}_writers_{count}"
            report.figures |= {f"{name}_microseconds": seconds[ours + suffix] * 1e6, f"{name}_cost_ratio": ratio}
            report.figures[f"{name}_rate_ratio"] = 1 / ratio
    report.notes.append(
        f"create() and enqueue() in a transaction a message; the others {options['many']:,} messages in one, "
        f"{CHUNK:,} an INSERT. Payloads of {options['size']:,} bytes; median of {options['repeats']}."
    )
    return report
