"""Reports of a relay: log lines about its life, heartbeats, and counts of deliveries."""

import datetime
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from weakref import WeakKeyDictionary

from django.db import DatabaseError, InterfaceError
from django.db.models import F

from django_outbox.brokers.outcomes import describe_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.conf import get_settings
from django_outbox.models import DeliveryCount
from django_outbox.relay.clock import ClockGuard
from django_outbox.relay.state import RelayState, Tally
from django_outbox.service import announcements, heartbeats
from django_outbox.service.announcements import Life
from django_outbox.service.heartbeats import Reporter
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.stores.publishers import find_unknown_publishers
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted
from django_outbox.utils.threads import own_connection

KEEP_COUNTS = {SLOT: datetime.timedelta(minutes=2), MINUTE: datetime.timedelta(hours=25)}
"""Age up to which counts are kept, by period: the last minute is shown in ten seconds each, and a day."""


def relay_reporting(state: RelayState, mode: str, workers: int) -> AbstractContextManager[None]:
    """Report at intervals in a thread until the end of the block, and then for a last time."""
    return heartbeats.reporting(RelayReporter(state, mode, workers), state.limits.report_patience)


class RelayReporter(Reporter):
    subject = "relay"
    work = "delivery"

    def __init__(
        self, state: RelayState, mode: str, workers: int, unwritten: WeakKeyDictionary[Reporter, str] | None = None
    ) -> None:
        super().__init__(state.using, mode, state.limits.report_pace, unwritten)
        self._state = state
        self._workers = workers
        self._clock = ClockGuard(state.using, state.settings)
        self._written: dict[tuple[str, datetime.timedelta], Tally] = {}

    def write(self, *, last: bool) -> None:
        self._clock.check()
        tallies = self._state.budget.read()
        total = sum(tallies.values(), Tally())
        figures = {
            "workers": self._workers,
            "publishers": {alias: self._state.describe(alias) for alias in tallies},
            "processed": total.processed,
            "retried": total.retried,
            "failed": total.failed,
        }
        self.write_heartbeat(figures, last=last)
        for alias, tally in tallies.items():
            for period in KEEP_COUNTS:
                self._write_counts(alias, tally, period)

    def _write_counts(self, alias: str, tally: Tally, period: datetime.timedelta) -> None:
        before = self._written.get((alias, period), Tally())
        new = {name: getattr(tally, name) - getattr(before, name) for name in ("processed", "retried", "failed")}
        if not any(new.values()):
            return
        now = read_clock(self._using)
        counts = DeliveryCount.objects.using(self._using).filter(seconds=period.seconds)
        mine = {"start": floor(now, period), "publisher": alias, "relay": self._name}
        if not counts.filter(**mine).update(**{name: F(name) + number for name, number in new.items()}):
            counts.create(seconds=period.seconds, **mine, **new)
            counts.filter(start__lt=now - KEEP_COUNTS[period]).delete()
        self._written[alias, period] = tally


def relay_announcing(
    state: RelayState, publishers: Sequence[Publisher], workers: int, *, level: int = logging.INFO, schemas: str = ""
) -> AbstractContextManager[None]:
    """Log the start of a relay, a line at intervals until the end of the block, and its end with totals."""

    def read() -> dict[str, int]:
        tally = state.budget.tally
        return {"delivered": tally.processed, "will be retried": tally.retried, "failed": tally.failed}

    def begin() -> None:
        if level >= logging.INFO and not schemas:
            _warn_of_unknown_publishers(state.using)

    served = ", ".join(f"publisher {each.alias!r} ({describe_publisher(each)})" for each in publishers)
    setup = f"{served}; {counted(workers, 'worker')} each" + (schemas and f"; {schemas}")
    life = Life("Relay", setup, read, busy="delivering", idle="nothing delivered", begin=begin)
    return announcements.announcing(life, state, level=level)


def _warn_of_unknown_publishers(using: str) -> None:
    # The workers report a database that cannot be used.
    with suppress(DatabaseError, InterfaceError), own_connection(using):
        for alias in find_unknown_publishers(using, get_settings().publishers):
            logger.warning(
                "The database %(database)r has pending messages of the publisher %(publisher)r, which is not in "
                "OUTBOX['PUBLISHERS']. No relay delivers them until it is.",
                event="relay.unknown_publisher",
                database=using,
                publisher=alias,
            )
