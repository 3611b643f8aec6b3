"""Cost of a message for the caller, its commit included, compared with a plain row.

create() and enqueue(): a transaction for each message; bulk_create() and enqueue_many(): ten times as many messages in
one transaction, 1,000 an INSERT.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from typing import NamedTuple

from django.db import connection, connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.benchmarks.measuring import Run
from tests.benchmarks.messages import make_messages
from tests.benchmarks.options import add_numbers, add_source
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, refresh
from tests.benchmarks.workspace import ACCEPTING, outbox_settings


class Case(NamedTuple):
    """A call, and the number of processes that make it."""

    call: str
    writers: int

    def __str__(self) -> str:
        return f"{self.call}(), writers: {self.writers}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    add_numbers(parser, messages=1000, writers=16, repeats=7)


def run(options: argparse.Namespace) -> Report:
    writers = options.writers if connection.vendor != "sqlite" else 1
    # No process may inherit a connection.
    connections.close_all()
    publisher = {**ACCEPTING, "SOURCE": options.source}
    with outbox_settings(publisher), ProcessPoolExecutor(writers, mp_context=get_context("fork")) as pool:
        list(pool.map(_warm_up, range(writers)))

        def measure(case: Case) -> Run:
            messages = options.messages * (1 if case.call in ("create", "enqueue") else 10)
            share = -(-messages // case.writers)
            empty()
            refresh()
            start = time.perf_counter()
            list(pool.map(_write, [(case.call, share, options.seed)] * case.writers))
            seconds = time.perf_counter() - start
            return Run(share * case.writers, seconds, {"µs a message": 1e6 * seconds / (share * case.writers)})

        cases = [Case(*each) for each in product(CALLS, sorted({1, writers}))]
        return compare(
            f"The caller's side on {connection.display_name}",
            cases * options.repeats,
            measure,
            lambda case: case._replace(call=PLAIN.get(case.call, case.call)),
            ratio="of a plain row",
        )


def _warm_up(_number: int) -> None:
    for call in CALLS:
        _write((call, 1, 0))
    # Long enough that each process gets one of these.
    time.sleep(0.2)


def _write(task: tuple[str, int, int]) -> None:
    call, count, seed = task
    CALLS[call](make_messages(count, seed=seed))


def _create(messages: Iterator[OutboxMessage]) -> None:
    for message in messages:
        with transaction.atomic():
            OutboxMessage.objects.create(type=message.type, key=message.key, payload=message.payload)


def _enqueue(messages: Iterator[OutboxMessage]) -> None:
    for message in messages:
        with transaction.atomic():
            enqueue(message.type, message.payload, key=message.key)


def _bulk_create(messages: Iterator[OutboxMessage]) -> None:
    with transaction.atomic():
        OutboxMessage.objects.bulk_create(messages, batch_size=1000)


def _enqueue_many(messages: Iterator[OutboxMessage]) -> None:
    with transaction.atomic():
        enqueue_many(messages)


CALLS: dict[str, Callable[[Iterator[OutboxMessage]], None]] = {
    "create": _create,
    "enqueue": _enqueue,
    "bulk_create": _bulk_create,
    "enqueue_many": _enqueue_many,
}

PLAIN = {"enqueue": "create", "enqueue_many": "bulk_create"}
