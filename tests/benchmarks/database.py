"""Claim and settle alone, compared with bare SQL."""

import argparse
from datetime import timedelta
from statistics import median
from typing import NamedTuple

from django.db import connection

from tests.benchmarks.bare_sql import drain_in_bare_sql
from tests.benchmarks.measuring import measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.relays import timed_drain
from tests.benchmarks.report import Report
from tests.benchmarks.tables import restore, save
from tests.benchmarks.workspace import require_server

WORK = {"bare": "bare SQL", "unkeyed": "outbox, no key", "keyed": "outbox, keys"}

RETENTIONS = {"deleted": timedelta(0), "kept": timedelta(days=7)}


class Case(NamedTuple):
    """Work on the messages, their fate afterwards, and the number of workers."""

    done: str
    workers: int
    work: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(50_000, "Messages of a case."),
        size=(250, "Bytes of a payload."),
        keys=(1000, "Keys of the keyed messages."),
        repeats=(3, "Rounds; the median of each case counts."),
        workers=([1, 2], "Workers at a time."),
        batch_size=(2000, "Messages in a claim."),
    )


def run(options: argparse.Namespace) -> Report:
    require_server()
    save("unkeyed", options.messages, seed=options.seed, size=options.size)
    save("keyed", options.messages, seed=options.seed, size=options.size, keys=options.keys)

    def measure(case: Case) -> float:
        size, delete = options.batch_size, case.done == "deleted"
        if case.work == "bare":
            restore("unkeyed")
            seconds = drain_in_bare_sql(options.messages, batch_size=size, workers=case.workers, delete=delete)
            return float(options.messages / seconds)
        retention = RETENTIONS[case.done]
        drained = timed_drain("", None, case.work, workers=case.workers, batch_size=size, RETENTION=retention)
        assert drained.messages == options.messages
        return drained.rate

    cases = [Case(done, workers, work) for done in RETENTIONS for workers in options.workers for work in WORK]
    rates = {case: median(found) for case, found in measure_all(cases * options.repeats, measure).items()}
    report = Report(
        title=f"Claim and settle on {connection.display_name}; every message is accepted at once",
        columns=["processed", "workers", "work", "msg/s", "of bare SQL"],
    )
    for case, rate in rates.items():
        ratio = rate / rates[case._replace(work="bare")]
        report.rows.append([case.done, str(case.workers), WORK[case.work], rate, ratio])
        name = f"{case.work}_{case.done}_workers_{case.workers}"
        report.figures |= {f"{name}_rate": rate, f"{name}_ratio": ratio}
    report.notes.append(
        f"{options.messages:,} messages of {options.size:,} bytes, {options.keys:,} keys where there are any, in "
        f"batches of {options.batch_size:,}; median of {options.repeats}. Bare SQL: claim and settle in one statement "
        "where the database can, no limit in bytes, no order of keys, no publisher. Processed messages are kept, or "
        "deleted (RETENTION 0)."
    )
    return report
