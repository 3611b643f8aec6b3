"""Reports: a relay writes to the database that it is alive, and what it has delivered. No relay decides by them."""

import datetime
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from django.db import connections
from django.db.models import F

from django_outbox.db.functions import DatabaseNow
from django_outbox.error_text import describe
from django_outbox.logs import logger
from django_outbox.models import DeliveryCount, Heartbeat
from django_outbox.relay.shared import Shared
from django_outbox.relay.tally import Tally
from django_outbox.stores import get_store
from django_outbox.stores.clock import read_clock
from django_outbox.threads import Threads, own_connection

KEEP_COUNTS = datetime.timedelta(hours=25)
"""Age up to which the counts of a minute are kept: a day is shown, in periods of up to an hour."""

KEEP_RELAYS = datetime.timedelta(days=1)
"""Age up to which the report of a relay that is gone is kept."""


@contextmanager
def reporting(shared: Shared, mode: str, workers: int) -> Iterator[None]:
    """Report at intervals in a thread until the end of the block, and then for a last time.

    Args:
        shared: the counts and circuit breakers of the relay.
        mode: `run`, `drain` or `once`; only `run` reports before the end of the block.
        workers: number of threads for each publisher.
    """
    left = threading.Event()
    threads = Threads()
    reporter = Reporter(shared, mode, workers)
    if mode == "run":
        threads.start(partial(reporter.keep_reporting, left), name="outbox-reports")
    try:
        yield
    finally:
        left.set()
        if mode != "run":
            threads.start(partial(reporter.report, last=True), name="outbox-reports")
        threads.wait(shared.limits.report_patience)


class Reporter:
    """Writes the reports of one relay.

    Args:
        shared: the counts and circuit breakers of the relay.
        mode: `run`, `drain` or `once`.
        workers: number of threads for each publisher.
    """

    def __init__(self, shared: Shared, mode: str, workers: int) -> None:
        self._shared = shared
        self._mode = mode
        self._workers = workers
        self._host = socket.gethostname()[:240]
        self._pid = os.getpid()
        self._name = f"{self._host}:{self._pid}"
        self._started = False
        self._written: dict[str, Tally] = {}
        self._complained = False

    def keep_reporting(self, left: threading.Event) -> None:
        """Report at intervals until the event is set, and then for a last time."""
        interval = get_store(connections[self._shared.using]).report_interval
        while True:
            last = left.is_set()
            self.report(last=last)
            if last:
                return
            left.wait(interval * self._shared.limits.report_pace)

    def report(self, *, last: bool) -> None:
        """Write a report. A database that refuses it is logged once, and delivery goes on.

        Args:
            last: whether the relay ends.
        """
        try:
            with own_connection(self._shared.using):
                self._write(last)
            self._complained = False
        except Exception as error:
            if not self._complained:
                logger.warning("The relay's report could not be written; delivery goes on: %s", describe(error))
            self._complained = True

    def _write(self, last: bool) -> None:
        tallies = self._shared.counters.read()
        self._write_heartbeat(sum(tallies.values(), Tally()), last)
        for alias, tally in tallies.items():
            self._write_counts(alias, tally)

    def _write_heartbeat(self, total: Tally, last: bool) -> None:
        breakers = self._shared.breakers
        changes = {
            "host": self._host,
            "pid": self._pid,
            "version": find_version(),
            "mode": self._mode,
            "workers": self._workers,
            "publishers": {alias: breakers.describe(alias) for alias in self._shared.counters.read()},
            "processed": total.processed,
            "retried": total.retried,
            "failed": total.failed,
            "seen_at": DatabaseNow(),
            "stopped_at": DatabaseNow() if last else None,
        }
        if not self._started:
            changes["started_at"] = DatabaseNow()
        reports = Heartbeat.objects.using(self._shared.using)
        if not reports.filter(pk=self._name).update(**changes):
            reports.create(relay=self._name, **changes)
            reports.filter(seen_at__lt=DatabaseNow() - KEEP_RELAYS).delete()
        self._started = True

    def _write_counts(self, alias: str, tally: Tally) -> None:
        before = self._written.get(alias, Tally())
        new = {name: getattr(tally, name) - getattr(before, name) for name in ("processed", "retried", "failed")}
        if not any(new.values()):
            return
        minute = read_clock(self._shared.using).replace(second=0, microsecond=0)
        counts = DeliveryCount.objects.using(self._shared.using)
        mine = {"minute": minute, "publisher": alias, "relay": self._name}
        if not counts.filter(**mine).update(**{name: F(name) + number for name, number in new.items()}):
            counts.create(**mine, **new)
            counts.filter(minute__lt=minute - KEEP_COUNTS).delete()
        self._written[alias] = tally


def find_version() -> str:
    """Return the installed version of the package; blank if it was not installed."""
    try:
        return version("django-transactional-outbox")
    except PackageNotFoundError:
        return ""
