"""The purge with an archive in a folder, compared with the purge without one, alone and alongside a drain."""

import argparse
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from django.db import connection, connections
from django.test.utils import override_settings

from django_outbox.models import OutboxMessage
from django_outbox.relay import Relay
from django_outbox.retention.purge import purge
from tests.benchmarks.measuring import measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report
from tests.benchmarks.tables import empty, insert_rows, refresh
from tests.benchmarks.workspace import AcceptingPublisher, require_server

WORK = {"purge": "purge", "archive": "purge with an archive"}

AGE = timedelta(days=7)


class Case(NamedTuple):
    """With an archive or without one, and alone or alongside a drain."""

    drain: bool
    work: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(100_000, "Processed messages of a case."),
        pending=(100_000, "Messages that a drain delivers meanwhile."),
        max_rows=(50_000, "Messages in a file."),
        repeats=(3, "Rounds; the median of each case counts."),
    )


def run(options: argparse.Namespace) -> Report:
    require_server()
    sizes: list[int] = []

    def measure(case: Case) -> tuple[float, float]:
        empty()
        insert_rows(options.messages, processed="-1000000")
        insert_rows(options.pending if case.drain else 1, available="-number")
        refresh()
        with tempfile.TemporaryDirectory() as folder, _settings(case, folder, options.max_rows):
            rates = _purge(options.messages, drain=case.drain)
            if case.work == "archive":
                sizes.append(sum(file.stat().st_size for file in Path(folder).rglob("*.jsonl.gz")))
        return rates

    cases = [Case(drain, work) for drain in (False, True) for work in WORK]
    found = measure_all(cases * options.repeats, measure)
    report = Report(
        title=f"Purge with an archive on {connection.display_name}",
        columns=["alongside", "work", "rows/s", "of the purge", "drain msg/s"],
    )
    rates = {case: median(rate for rate, _ in each) for case, each in found.items()}
    for case, rate in rates.items():
        ratio = rate / rates[case._replace(work="purge")]
        drained = median(each for _, each in found[case])
        alongside = "a drain" if case.drain else "nothing"
        report.rows.append([alongside, WORK[case.work], rate, ratio, drained if case.drain else ""])
        name = f"{case.work}_{'drain' if case.drain else 'alone'}"
        report.figures |= {f"{name}_rate": rate, f"{name}_ratio": ratio}
        if case.drain:
            report.figures[f"{name}_drained_rate"] = drained
    report.notes.append(
        f"{options.messages:,} processed messages with payloads of 230 bytes, in files of {options.max_rows:,}; "
        f"{median(sizes) / options.messages:.0f} bytes a message in the archive; median of {options.repeats}. "
        f"The drain delivers {options.pending:,} messages to a publisher that accepts everything; its rate counts "
        "while the purge runs."
    )
    return report


def _settings(case: Case, folder: str, max_rows: int) -> override_settings:
    backend = f"{AcceptingPublisher.__module__}.{AcceptingPublisher.__qualname__}"
    outbox: dict[str, Any] = {"PUBLISHERS": {"default": {"BACKEND": backend}}}
    if case.work == "archive":
        outbox["ARCHIVE"] = {"storage": "outbox_archive", "max_rows": max_rows}
    storage = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": folder}}
    return override_settings(OUTBOX=outbox, STORAGES={"outbox_archive": storage})


def _purge(count: int, *, drain: bool) -> tuple[float, float]:
    """Purge that many messages, and return the rates of the purge and of the drain meanwhile."""
    with Relay() as relay:
        thread = threading.Thread(target=_drain, args=[relay])
        if drain:
            thread.start()
            while not relay.tally.processed and thread.is_alive():
                time.sleep(0.001)
        before, began = relay.tally.processed, time.perf_counter()
        deleted = purge(older_than=AGE)
        seconds = time.perf_counter() - began
        drained = relay.tally.processed - before
        relay.stop()
        if drain:
            thread.join()
    assert deleted == count
    assert not OutboxMessage.objects.filter(processed_at__isnull=False, attempts=0).exists()
    return count / seconds, drained / seconds


def _drain(relay: Relay) -> None:
    try:
        relay.drain()
    finally:
        connections.close_all()
