"""The log of the life of a relay or an inbox: its start, a line a minute, and its end with totals.

It has its own thread; no worker waits for it.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from django.db import connections

from django_outbox.service.state import ServiceState
from django_outbox.stores.schema import describe_database
from django_outbox.utils.logs import logger
from django_outbox.utils.process import find_version
from django_outbox.utils.text import duration
from django_outbox.utils.threads import Threads, in_background

PATIENCE = 0.5
"""Seconds to wait for a log that hangs, and at the end for a query of the thread."""


class Announcement(NamedTuple):
    """The words and counts of the log.

    Args:
        read: returns the counts so far by their names; the first one has a rate.
        idle: the text if the first count did not change.
        remind: logs what recurs, at each interval and before the end.
        find_obstacle: returns why no work is done, apart from outages; empty if there is no reason.
    """

    subject: str
    setup: str
    read: Callable[[], Mapping[str, int]]
    busy: str
    idle: str
    remind: Callable[[], object] = lambda: None
    find_obstacle: Callable[[], str] = str


@contextmanager
def announcing(announcement: Announcement, state: ServiceState, *, level: int = logging.INFO) -> Iterator[None]:
    """Log the start, a line at intervals until the end of the block, and the end. Start and end have this level."""
    began, before = time.monotonic(), announcement.read()
    _log_in_time(
        level,
        "%s %s started on %s, process %d: database %s; %s.",
        announcement.subject,
        find_version(),
        socket.gethostname(),
        os.getpid(),
        describe_database(connections[state.using]),
        announcement.setup,
        event="process.started",
        service=announcement.subject.lower(),
        database=state.using,
    )
    try:
        with in_background(
            lambda left: _announce(announcement, state, left), name="outbox-announcements", patience=PATIENCE
        ):
            yield
    finally:
        seconds = time.monotonic() - began
        counts = announcement.read()
        _do_in_time(announcement.remind)
        _log_in_time(
            level,
            "%s ended after %s: %s.",
            announcement.subject,
            duration(seconds),
            _figures(before, counts, seconds),
            event="process.ended",
            service=announcement.subject.lower(),
            database=state.using,
            seconds=seconds,
            counts=_passed(before, counts),
        )


def _announce(announcement: Announcement, state: ServiceState, left: threading.Event) -> None:
    then, before = time.monotonic(), announcement.read()
    while not left.wait(state.limits.announce_interval):
        now, counts = time.monotonic(), announcement.read()
        first = next(iter(counts))
        usual = announcement.busy if counts[first] > before[first] else announcement.idle
        doing = state.idle_reason or announcement.find_obstacle() or usual
        period = duration(now - then)
        shown = "minute" if period == "1 min" else period
        logger.info(
            "In the last %s: %s; %s.",
            shown,
            _figures(before, counts, now - then),
            doing,
            event="process.minute",
            service=announcement.subject.lower(),
            database=state.using,
            seconds=now - then,
            counts=_passed(before, counts),
            state=doing,
        )
        announcement.remind()
        state.outages.remind()
        then, before = now, counts


def _figures(before: Mapping[str, int], after: Mapping[str, int], seconds: float) -> str:
    passed = _passed(before, after)
    texts = [f"{count:,} {name}" for name, count in passed.items()]
    rate = next(iter(passed.values())) / max(seconds, 0.001)
    if rate >= 1:
        texts.append(f"{rate:,.0f} messages a second" if rate >= 10 else f"{rate:.1f} messages a second")
    return ", ".join(texts)


def _passed(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in after.items()}


def _log_in_time(level: int, text: str, *arguments: object, **fields: object) -> None:
    """Log a line, but do not wait long for a log that hangs, such as a full pipe."""
    if logger.isEnabledFor(level):
        _do_in_time(lambda: logger.log(level, text, *arguments, **fields))


def _do_in_time(work: Callable[[], object]) -> None:
    threads = Threads()
    threads.start(work, name="outbox-announcement")
    threads.wait(PATIENCE)
