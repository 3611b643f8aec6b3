"""The same drain with one setting changed: rate and processor time of each part."""

import argparse
import random
from datetime import timedelta
from statistics import median
from typing import Any

from django.db import connection

from tests.benchmarks.measuring import measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.processors import PARTS
from tests.benchmarks.queues import KINDS, Queues, topics
from tests.benchmarks.relays import Drained, timed_drain
from tests.benchmarks.report import Report
from tests.benchmarks.tables import save
from tests.benchmarks.workspace import require_broker, require_server

QUEUES = 4

PLAIN: dict[str, Any] = {"kind": "quorum", "table": "plain", "workers": 2, "batch_size": 2000}

TABLES: dict[str, dict[str, Any]] = {
    "plain": {},
    "keyed": {"keys": 1000},
    "one_queue": {"topics": topics(1)},
    "large": {"size": 2500},
}
"""The messages of each saved table."""

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "1 worker": {"workers": 1},
    "4 workers": {"workers": 4},
    "batches of 100": {"batch_size": 100},
    "batches of 500": {"batch_size": 500},
    "batches of 1000": {"batch_size": 1000},
    "batches of 5000": {"batch_size": 5000},
    "1000 keys": {"table": "keyed"},
    "RETENTION of zero": {"RETENTION": timedelta(0)},
    "classic queues": {"kind": "classic"},
    "1 queue": {"table": "one_queue"},
    "no confirms": {"publisher": {"dangerously_disable_confirms": True}},
    "payloads of 2500 bytes": {"table": "large"},
}
"""The changed setting, and its arguments of `timed_drain`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(50_000, "Messages of a case."),
        repeats=(7, "Rounds; the median of each case counts."),
    )


def run(options: argparse.Namespace) -> Report:
    require_server()
    url = require_broker()
    for table, content in TABLES.items():
        save(table, options.messages, **({"seed": options.seed, "topics": topics(QUEUES)} | content))
    # A drain burdens the one after it, which must not always be the same one.
    order = random.Random(options.seed)
    sequence = [case for _ in range(options.repeats) for case in order.sample(list(CASES), len(CASES))]
    with Queues(url, "classic", QUEUES) as classic, Queues(url, "quorum", QUEUES) as quorum:
        queues = dict(zip(KINDS, (classic, quorum), strict=True))

        def measure(case: str) -> Drained:
            arguments = PLAIN | CASES[case]
            return timed_drain(url, queues[arguments.pop("kind")], **arguments)

        runs = measure_all(sequence, measure)
    report = Report(
        title=f"The drain from {connection.display_name} to quorum queues, with one setting changed",
        columns=["changed", "msg/s", "ratio", *(f"{part} µs" for part in PARTS)],
    )
    rates = {case: median(run.rate for run in found) for case, found in runs.items()}
    for case in CASES:
        name, ratio = case.replace(" ", "_"), rates[case] / rates["nothing"]
        report.figures |= {f"{name}_rate": rates[case], f"{name}_ratio": ratio}
        costs: list[float | str] = []
        for part in PARTS:
            found = [run.processor[part] * 1e6 / run.messages for run in runs[case] if part in run.processor]
            costs.append(median(found) if found else "")
            if found:
                report.figures[f"{name}_{part}_microseconds"] = median(found)
        report.rows.append([case, rates[case], ratio, *costs])
    report.notes = [
        f"{options.messages:,} messages a case, of 250 bytes and without keys, over {QUEUES} quorum queues, in batches "
        f"of {PLAIN['batch_size']:,} by {PLAIN['workers']} workers, unless stated; median of {options.repeats}.",
        "µs: processor time of a message, if the part runs on this machine.",
    ]
    return report
