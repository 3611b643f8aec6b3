"""Claim and settle alone, compared with bare SQL.

Bare SQL: one statement where the database can, no limit in bytes, no order of keys, no publisher. Processed messages
are kept, or deleted (RETENTION of zero). Every message is accepted at once.
"""

import argparse
from datetime import timedelta
from typing import NamedTuple

from django.db import connection

from tests.benchmarks.bare_sql import drain_in_bare_sql
from tests.benchmarks.measuring import Run
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relays import timed_drain
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import restore, save
from tests.benchmarks.workspace import require_server

RETENTIONS = {"deleted": timedelta(0), "kept": timedelta(days=7)}


class Case(NamedTuple):
    """The fate of processed messages, the number of workers, and the messages of the outbox or bare SQL."""

    done: str
    workers: int
    work: str

    def __str__(self) -> str:
        return f"{self.done}, workers: {self.workers}, {self.work}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=50_000, keys=1000, workers=[1, 2], batch_size=2000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    require_server()
    save("unkeyed", options.messages, seed=options.seed)
    save("keyed", options.messages, seed=options.seed, keys=options.keys)

    def measure(case: Case) -> Run:
        workers, size, retention = case.workers, options.batch_size, RETENTIONS[case.done]
        if case.work == "bare SQL":
            restore("unkeyed")
            run = drain_in_bare_sql(batch_size=size, workers=workers, delete=not retention)
        else:
            run = timed_drain(None, case.work, workers=workers, batch_size=size, RETENTION=retention)
        assert run.messages == options.messages
        return run

    works = ("bare SQL", "unkeyed", "keyed")
    cases = [Case(done, workers, work) for done in RETENTIONS for workers in options.workers for work in works]
    return compare(
        f"Claim and settle on {connection.display_name}",
        cases * options.repeats,
        measure,
        lambda case: case._replace(work="bare SQL"),
        ratio="of bare SQL",
    )
