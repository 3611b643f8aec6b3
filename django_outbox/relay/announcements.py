"""The log of a relay's life: its start, a line a minute, and its end. It has its own thread; no worker waits for it."""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.deployment import describe_database, find_unknown_publishers, find_version
from django_outbox.logs import logger
from django_outbox.publishers.base import Publisher
from django_outbox.publishers.outcomes import describe_publisher
from django_outbox.relay.shared import Shared
from django_outbox.threads import Threads, own_connection
from django_outbox.wording import counted, duration

PATIENCE = 0.5
"""Seconds to wait for a log that hangs, and at the end for a query of the thread."""


class Figures(NamedTuple):
    """The counts of a relay at some time, on the monotonic clock."""

    time: float
    delivered: int
    retried: int
    failed: int

    @classmethod
    def read(cls, shared: Shared) -> "Figures":
        """Return the counts so far."""
        tally = shared.budget.tally
        return cls(time.monotonic(), tally.processed, tally.retried, tally.failed)

    def since(self, earlier: "Figures") -> "Figures":
        """Return the counts between two times; `time` is the number of seconds between them."""
        return Figures(
            self.time - earlier.time,
            self.delivered - earlier.delivered,
            self.retried - earlier.retried,
            self.failed - earlier.failed,
        )

    def __str__(self) -> str:
        rate = self.delivered / max(self.time, 0.001)
        shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
        return (
            f"{self.delivered:,} delivered, {self.retried:,} will be retried, {self.failed:,} failed, "
            f"{shown} messages a second"
        )


@contextmanager
def announcing(
    shared: Shared, publishers: Sequence[Publisher], workers: int, *, level: int = logging.INFO
) -> Iterator[None]:
    """Log the start of a relay, a line at intervals until the end of the block, and its end with totals.

    Args:
        shared: what the workers of the relay share.
        publishers: the publishers that are served.
        workers: number of threads for each publisher.
        level: the level of the start and the end.
    """
    start = Figures.read(shared)
    _log_in_time(
        level,
        "Relay %s started on %s, process %d: database %s; %s; %s each.",
        find_version(),
        socket.gethostname(),
        os.getpid(),
        describe_database(connections[shared.using]),
        ", ".join(f"publisher {each.alias!r} ({describe_publisher(each)})" for each in publishers),
        counted(workers, "worker"),
    )
    left = threading.Event()
    threads = Threads()
    threads.start(lambda: _announce(shared, start, left, warn=level >= logging.INFO), name="outbox-announcements")
    try:
        yield
    finally:
        left.set()
        whole = Figures.read(shared).since(start)
        threads.wait(PATIENCE)
        _log_in_time(level, "Relay ended after %s: %s.", duration(whole.time), str(whole))


def _log_in_time(level: int, text: str, *arguments: object) -> None:
    """Log a line, but do not wait long for a log that hangs, such as a full pipe."""
    if logger.isEnabledFor(level):
        threads = Threads()
        threads.start(lambda: logger.log(level, text, *arguments), name="outbox-log")
        threads.wait(PATIENCE)


def _announce(shared: Shared, before: Figures, left: threading.Event, *, warn: bool) -> None:
    if warn:
        _warn_of_unknown_publishers(shared.using)
    while not left.wait(shared.limits.announce_interval):
        now = Figures.read(shared)
        passed = now.since(before)
        logger.info("Last %s: %s; %s.", duration(passed.time), str(passed), _state(shared, passed))
        shared.outages.remind()
        before = now


def _state(shared: Shared, passed: Figures) -> str:
    if shared.stopping:
        return "stopping"
    if outages := shared.outages.current:
        return ", ".join(f"{outage.name} unavailable" for outage in outages)
    return "delivering" if passed.delivered else "nothing delivered"


def _warn_of_unknown_publishers(using: str) -> None:
    # The workers report a database that cannot be used.
    with suppress(DatabaseError, InterfaceError), own_connection(using):
        for alias in find_unknown_publishers(using):
            logger.warning(
                "The database %r has pending messages of the publisher %r, which is not in OUTBOX['PUBLISHERS']. No "
                "relay delivers them until it is.",
                using,
                alias,
            )
