"""`benchmark database`: claim and settle alone, beside the same work in bare SQL."""

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from statistics import median
from typing import Any

from django.db import connection
from shop.terminal import ProgressBar

from benchmarks.arguments import add_numbers
from benchmarks.bare_sql import drain_in_bare_sql
from benchmarks.messages import fill
from benchmarks.report import Report
from benchmarks.tables import empty, restore, save
from benchmarks.workspace import ACCEPTING, outbox_settings, require_server
from django_outbox.management.arguments import whole_number
from django_outbox.relay import Relay

OPTIONS = ("messages", "size", "keys", "repeats", "workers", "batch_size")

RETENTIONS = {"none": timedelta(0), "7 days": timedelta(days=7)}


@dataclass(frozen=True)
class Case:
    """Who does the work, and what becomes of what is done.

    Args:
        who: `bare SQL` or `outbox`.
        table: the saved messages that it works on.
        retention: one of `RETENTIONS`.
        workers: how many at the same time.
    """

    who: str
    table: str
    retention: str
    workers: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    add_numbers(
        parser,
        messages=(50_000, "A case."),
        size=(250, "Bytes of a payload."),
        keys=(1000, "Keys of the keyed messages."),
        repeats=(3, "Rounds, of which the median counts."),
        batch_size=(2000, "Messages in a claim."),
    )
    parser.add_argument(
        "--workers", metavar="N", nargs="+", type=whole_number, default=[1, 2], help="At a time (default: 1 2)."
    )


def run(options: dict[str, Any]) -> Report:
    """Measure round after round, so that whatever disturbs the machine hits all cases alike."""
    require_server()
    for name, keys in (("unkeyed", 0), ("keyed", options["keys"])):
        with outbox_settings(ACCEPTING):
            empty()
            fill(options["messages"], seed=options["seed"], size=options["size"], keys=keys)
        save(name)
    cases = [
        Case(who, table, retention, workers)
        for retention, workers in product(RETENTIONS, options["workers"])
        for who, table in (("bare SQL", "unkeyed"), ("outbox", "unkeyed"), ("outbox", "keyed"))
    ]
    rates: dict[Case, list[float]] = defaultdict(list)
    with ProgressBar("  measuring", options["repeats"] * len(cases)) as bar:
        for _ in range(options["repeats"]):
            for case in cases:
                restore(case.table)
                rates[case].append(options["messages"] / _measure(case, options))
                bar.advance()
    return _report(options, {case: median(found) for case, found in rates.items()})


def _measure(case: Case, options: dict[str, Any]) -> float:
    count, batch_size = options["messages"], options["batch_size"]
    if case.who == "bare SQL":
        return drain_in_bare_sql(
            count, batch_size=batch_size, workers=case.workers, delete=not RETENTIONS[case.retention]
        )
    with (
        outbox_settings(ACCEPTING, RETENTION=RETENTIONS[case.retention]),
        Relay(workers=case.workers, batch_size=batch_size) as relay,
    ):
        start = time.perf_counter()
        processed = relay.drain().processed
        seconds = time.perf_counter() - start
    assert processed == count
    return seconds


def _report(options: dict[str, Any], rates: dict[Case, float]) -> Report:
    report = Report(
        name="database",
        title=f"Claim and settle on {connection.display_name}; every message is accepted at once",
        columns=["retention", "workers", "what", "msg/s", "of bare SQL"],
    )
    for case, rate in rates.items():
        bare = rates[Case("bare SQL", "unkeyed", case.retention, case.workers)]
        text = case.who if case.who == "bare SQL" else f"{case.who}, {'no key' if case.table == 'unkeyed' else 'keys'}"
        report.rows.append([case.retention, str(case.workers), text, rate, rate / bare])
        kept = "kept" if RETENTIONS[case.retention] else "deleted"
        name = f"{'bare' if case.who == 'bare SQL' else case.table}_{kept}_workers_{case.workers}"
        report.figures |= {f"{name}_rate": rate, f"{name}_ratio": rate / bare}
    report.notes.append(
        f"{options['messages']:,} messages of {options['size']:,} bytes, {options['keys']:,} keys where there are any, "
        f"in batches of {options['batch_size']:,}; median of {options['repeats']}. Bare SQL: claim and settle in one "
        "statement where the database can, no limit in bytes, no order of keys, no publisher."
    )
    return report
