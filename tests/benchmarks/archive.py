"""The purge with an archive in a folder, compared with the purge without one, alone and alongside a drain.

The drain delivers as many messages as are purged, to a publisher that accepts everything; its rate counts while the
purge runs.
"""

import argparse
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from django.db import connection, connections
from django.test.utils import override_settings

from django_outbox.relay import Relay
from django_outbox.retention.purge import purge
from tests.benchmarks.measuring import Run
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, insert_rows, refresh
from tests.benchmarks.workspace import outbox_settings, require_server


class Case(NamedTuple):
    """Alone or alongside a drain, and with an archive or without one."""

    drain: bool
    archive: bool

    def __str__(self) -> str:
        return f"purge{', with an archive' * self.archive}{', alongside a drain' * self.drain}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=100_000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    require_server()

    def measure(case: Case) -> Run:
        empty()
        insert_rows(options.messages, processed="-1000000")
        insert_rows(options.messages if case.drain else 1, available="-number")
        refresh()
        settings: dict[str, Any] = {"ARCHIVE": {"storage": "outbox_archive", "max_rows": 50_000}}
        with tempfile.TemporaryDirectory() as folder:
            storage = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": folder}}
            with (
                override_settings(STORAGES={"outbox_archive": storage}),
                outbox_settings(**(settings if case.archive else {})),
            ):
                run = _purge(drain=case.drain)
            size = sum(file.stat().st_size for file in Path(folder).rglob("*.jsonl.gz"))
        assert run.messages == options.messages
        return Run(run.messages, run.seconds, {**run.figures, "archive, bytes a message": size / run.messages})

    cases = [Case(drain, archive) for drain in (False, True) for archive in (False, True)]
    return compare(
        f"Purge with an archive on {connection.display_name}",
        cases * options.repeats,
        measure,
        lambda case: case._replace(archive=False),
        ratio="of the purge",
    )


def _purge(*, drain: bool) -> Run:
    with Relay() as relay:
        thread = threading.Thread(target=_drain, args=[relay])
        if drain:
            thread.start()
            while not relay.tally.processed and thread.is_alive():
                time.sleep(0.001)
        before, began = relay.tally.processed, time.perf_counter()
        deleted = purge(older_than=timedelta(days=7))
        seconds = time.perf_counter() - began
        drained = relay.tally.processed - before
        relay.stop()
        if drain:
            thread.join()
    return Run(deleted, seconds, {"drain msg/s": drained / seconds})


def _drain(relay: Relay) -> None:
    try:
        relay.drain()
    finally:
        connections.close_all()
