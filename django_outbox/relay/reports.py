"""Reports of a relay: log lines about its life, heartbeats, and counts of deliveries."""

import datetime
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from django.db.models import F

from django_outbox.brokers.outcomes import describe_publisher
from django_outbox.brokers.publisher import Publisher
from django_outbox.models import DeliveryCount, OutboxMessage, OutboxMessageQuerySet
from django_outbox.relay.state import RelayState, Tally
from django_outbox.service.announcements import Announcement, announcing
from django_outbox.service.heartbeats import Reporter, reporting
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.utils.logs import logger
from django_outbox.utils.process import name_process
from django_outbox.utils.text import MAX_IDS, counted, some_ids

KEEP_COUNTS = {SLOT: datetime.timedelta(minutes=10), MINUTE: datetime.timedelta(hours=25)}
"""Age up to which counts are kept, by period. Seconds since the last delivery can be shown for 10 minutes."""


def relay_reporting(state: RelayState, mode: str, workers: int) -> AbstractContextManager[None]:
    """Report at intervals in a thread until the end of the block, and then for a last time."""
    return reporting(make_reporter(state, mode, workers), state.service)


def make_reporter(state: RelayState, mode: str, workers: int) -> Reporter:
    """Return a reporter that also writes the counts of deliveries."""
    counts = DeliveryCounts(state.using)

    def read() -> dict[str, Any]:
        tallies = state.budget.read()
        for alias, tally in tallies.items():
            counts.write(alias, tally)
            _end_refusals(state, alias)
        total = sum(tallies.values(), Tally())
        return {
            "workers": workers,
            "publishers": {alias: state.describe(alias) for alias in tallies},
            "processed": total.processed,
            "retried": total.retried,
            "failed": total.failed,
        }

    return Reporter(state.using, mode, read, service="relay", work="delivery")


def _end_refusals(state: RelayState, publisher_alias: str) -> None:
    """Forget the refused messages that have been processed, failed or deleted since, perhaps by another relay."""
    refusals = state.refusals[publisher_alias]
    if not (known := refusals.known):
        return
    messages = OutboxMessageQuerySet(OutboxMessage, using=state.using).filter(pk__in=known)
    left = (messages.pending(), messages.waiting_in_streams())
    ended = sorted(known.difference(*(rows.values_list("pk", flat=True) for rows in left)))
    if ended:
        refusals.forget(ended)
        logger.info(
            "Publisher %r: %s no longer refused by the database (%s)",
            publisher_alias,
            f"{counted(len(ended), 'message')} {'is' if len(ended) == 1 else 'are'}",
            some_ids(ended),
            event="relay.refusals_ended",
            publisher=publisher_alias,
            database=state.using,
            count=len(ended),
            ids=ended[:MAX_IDS],
        )


class DeliveryCounts:
    """Adds what was delivered since the last time to the counts of the current periods."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._written: dict[tuple[str, datetime.timedelta], Tally] = {}

    def write(self, publisher_alias: str, tally: Tally) -> None:
        for period in KEEP_COUNTS:
            self._write(publisher_alias, tally, period)

    def _write(self, publisher_alias: str, tally: Tally, period: datetime.timedelta) -> None:
        before = self._written.get((publisher_alias, period), Tally())
        new = {name: getattr(tally, name) - getattr(before, name) for name in ("processed", "retried", "failed")}
        if not any(new.values()):
            return
        now = read_clock(self._using)
        counts = DeliveryCount.objects.using(self._using).filter(seconds=period.seconds)
        mine = {"start": floor(now, period), "publisher": publisher_alias, "relay": name_process()}
        if not counts.filter(**mine).update(**{name: F(name) + number for name, number in new.items()}):
            counts.create(seconds=period.seconds, **mine, **new)
            counts.filter(start__lt=now - KEEP_COUNTS[period]).delete()
        self._written[publisher_alias, period] = tally


def relay_announcing(
    state: RelayState,
    publishers: Sequence[Publisher],
    workers: int,
    *,
    level: int = logging.INFO,
    all_schemas: bool = False,
) -> AbstractContextManager[None]:
    """Log the start of a relay, a line at intervals until the end of the block, and its end with totals."""

    def read() -> dict[str, int]:
        tally = state.budget.tally
        return {"delivered": tally.processed, "will be retried": tally.retried, "failed": tally.failed}

    served = ", ".join(f"publisher {each.alias!r} ({describe_publisher(each)})" for each in publishers)
    setup = f"{served}; {counted(workers, 'worker')} each" + ("; the schemas of all tenants" if all_schemas else "")
    announcement = Announcement(
        "Relay", setup, read, busy="delivering", idle="nothing delivered", remind=state.failures.remind
    )
    return announcing(announcement, state.service, level=level)
