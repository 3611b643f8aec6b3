"""The log of an inbox's life: its start, a line a minute, and its end."""

import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connections

from django_outbox.deployment import describe_database, find_version
from django_outbox.inbox.base import Consumer
from django_outbox.inbox.shared import Shared, Tally
from django_outbox.logs import logger
from django_outbox.threads import Threads
from django_outbox.wording import duration

PATIENCE = 0.5
"""Seconds to wait for a log that hangs."""


@contextmanager
def announcing(shared: Shared, consumers: Sequence[Consumer]) -> Iterator[None]:
    """Log the start of an inbox, a line at intervals until the end of the block, and its end with totals."""
    began = time.monotonic()
    logger.info(
        "Inbox %s started on %s, process %d: database %s; %s.",
        find_version(),
        socket.gethostname(),
        os.getpid(),
        describe_database(connections[shared.using]),
        ", ".join(f"consumer {each.alias!r} ({each.source}) for publisher {each.publisher!r}" for each in consumers),
    )
    left = threading.Event()
    threads = Threads()
    threads.start(lambda: _announce(shared, left), name="outbox-inbox-announcements")
    try:
        yield
    finally:
        left.set()
        seconds = time.monotonic() - began
        logger.info("Inbox ended after %s: %s.", duration(seconds), _figures(shared.tally, seconds))
        threads.wait(PATIENCE)


def _announce(shared: Shared, left: threading.Event) -> None:
    then, before = time.monotonic(), shared.tally
    while not left.wait(shared.limits.announce_interval):
        now, tally = time.monotonic(), shared.tally
        passed = tally - before
        logger.info("Last %s: %s; %s.", duration(now - then), _figures(passed, now - then), _state(shared, passed))
        shared.outages.remind()
        then, before = now, tally


def _figures(tally: Tally, seconds: float) -> str:
    rate = tally.received / max(seconds, 0.001)
    return f"{tally}, {f'{rate:,.0f}' if rate >= 10 else f'{rate:.1f}'} messages a second"


def _state(shared: Shared, passed: Tally) -> str:
    if shared.stopping:
        return "stopping"
    if outages := shared.outages.current:
        return ", ".join(f"{outage.name} unavailable" for outage in outages)
    if paused := shared.paused:
        return f"paused because of the backlog: {', '.join(paused)}"
    return "reading" if passed.received else "nothing received"
