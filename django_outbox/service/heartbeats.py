"""Heartbeats: a process reports to the database that it is alive, and what it does. They are informational only."""

import datetime
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from django.db import connections
from django.db.models import Q

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import Heartbeat
from django_outbox.service.state import ServiceState
from django_outbox.stores.clock import read_clock
from django_outbox.utils.logs import logger
from django_outbox.utils.process import find_version, name_process
from django_outbox.utils.text import describe
from django_outbox.utils.threads import Threads, in_background, own_connection

REPORT_INTERVAL = 10.0
"""Seconds between two reports of a process."""

LOOK_INTERVAL = 1.0
"""Seconds within which a process that is stopping reports that."""

KEEP_REPORTS = datetime.timedelta(days=1)
"""Age up to which the report of a process that is gone is kept."""

SUCCESSION = datetime.timedelta(minutes=3)
"""Silence after which the report of a predecessor is deleted. A process that is silent for that long does not count as
alive."""

_writing = threading.Lock()
"""All relays of a process write one row."""


class Reporter:
    """Writes the reports of one process.

    Args:
        mode: `run`, `drain` or `once`; only `run` reports before the end.
        read: returns the fields of a heartbeat that the process fills; it may write other reports.
        service: the process that reports, for the log: "relay".
        work: the work that goes on without reports, for the log: "delivery".
        suffix: the end of its name, which distinguishes it from other reporters of one process.
    """

    def __init__(
        self,
        using: str,
        mode: str,
        read: Callable[[], Mapping[str, Any]],
        *,
        service: str,
        work: str,
        suffix: str = "",
    ) -> None:
        self._using = using
        self.mode = mode
        self._read = read
        self._service = service
        self._work = work
        self._host = socket.gethostname()[:240]
        self._pid = os.getpid()
        self._name = name_process() + suffix
        self._started_at: datetime.datetime | None = None
        self._is_written = True

    def keep_reporting(self, state: ServiceState, left: threading.Event) -> None:
        """Report at intervals until the event is set, and then for a last time.

        From the moment at which the process is stopping it reports that it has stopped, because it may hang until it is
        killed.
        """
        while True:
            ended, stopping = left.is_set(), state.stopping
            self.report(last=ended or stopping)
            if ended:
                return
            next_at = time.monotonic() + REPORT_INTERVAL * state.limits.report_pace
            while (seconds := next_at - time.monotonic()) > 0 and state.stopping == stopping:
                if left.wait(min(seconds, LOOK_INTERVAL)):
                    break

    def report(self, *, last: bool) -> None:
        with own_connection(self._using):
            self.try_to_write(last=last)

    def try_to_write(self, *, last: bool) -> None:
        """Write a report over the thread's connection; the first of several errors is logged."""
        try:
            with _writing:
                self._write(self._read(), last=last)
            self._is_written = True
        except Exception as error:
            if self._is_written:
                logger.warning(
                    f"The %(service)s's report could not be written; {self._work} goes on: %(reason)s",
                    event="process.report_not_written",
                    service=self._service,
                    database=self._using,
                    reason=describe(error),
                )
            self._is_written = False
            with suppress(Exception):
                connections[self._using].close()

    def _write(self, figures: Mapping[str, Any], *, last: bool) -> None:
        """Write the row of this process, and delete the rows of its predecessors.

        A container that is started again has the host name and the process id of its predecessor. So may other
        containers that run next to it, but their reports go on after this process has started.
        """
        changes = {
            "host": self._host,
            "pid": self._pid,
            "version": find_version(),
            "mode": self.mode,
            "seen_at": DatabaseNow(),
            "stopped_at": DatabaseNow() if last else None,
            **figures,
        }
        reports = Heartbeat.objects.using(self._using)
        if self._started_at is None:
            self._started_at = changes["started_at"] = read_clock(self._using)
        if not reports.filter(pk=self._name).update(**changes):
            reports.create(relay=self._name, **{**changes, "started_at": self._started_at})
        old = Q(seen_at__lt=DatabaseNow() - KEEP_REPORTS)
        silent = Q(seen_at__lt=DatabaseNow() - SUCCESSION)
        predecessors = Q(host=self._host, pid=self._pid, seen_at__lt=self._started_at)
        # Without a row that is deleted, this locks none: other relays are writing theirs.
        if names := [*reports.filter(old | silent & predecessors).values_list("pk", flat=True)]:
            reports.filter(pk__in=names).delete()


@contextmanager
def reporting(reporter: Reporter, state: ServiceState) -> Iterator[None]:
    """Report at intervals in a thread until the end of the block, and then for a last time."""
    patience = state.limits.report_patience
    if reporter.mode == "run":
        report = partial(reporter.keep_reporting, state)
        with in_background(report, name="outbox-reports", patience=patience):
            yield
        return
    try:
        yield
    finally:
        threads = Threads()
        threads.start(partial(reporter.report, last=True), name="outbox-reports")
        threads.wait(patience)
