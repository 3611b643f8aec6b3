"""Repair times that lie in the future after the database's clock went back."""

import datetime
import math
from contextlib import AbstractContextManager

from django.db import connections
from django.db.models import F, Value

from django_outbox.conf import OutboxSettings
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import HELD_BY_PAUSE, DeliveryCount, Heartbeat, KeyLock, OutboxMessage
from django_outbox.stores import get_store
from django_outbox.stores.clock import TOLERANCE, boot_time
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted


class ClockGuard:
    """Notices that the clock went back, because a report has a time in the future, and moves such times once.

    What a report dates in the future happened now, because no message may be early. So a message without a
    delay is due now, and one that failed waits for its next attempt from now on. Others keep their times, as nothing
    shows whether a delay or a time was asked for.

    A living relay renews or ends its leases within `CLAIM_TIMEOUT`. The leases that are left after that time are of
    relays that have died, so they are ended.
    """

    def __init__(self, using: str, settings: OutboxSettings) -> None:
        self._using = using
        self._claim_timeout = max(settings.claim_timeouts.values())
        self._leases: dict[int, datetime.datetime | None] = {}
        self._leases_end_at = math.inf

    def check(self) -> None:
        """Look for a report in the future; to be called before the own report is written."""
        reports = Heartbeat.objects.using(self._using).order_by("-seen_at")
        newest = reports.values_list("seen_at", DatabaseNow()).first()
        if newest is not None and newest[0] - newest[1] > TOLERANCE:
            self._move_times(newest[1], newest[0] - newest[1])
        if boot_time() >= self._leases_end_at:
            self._end_leases()

    def _move_times(self, now: datetime.datetime, step: datetime.timedelta) -> None:
        reports = Heartbeat.objects.using(self._using).filter(seen_at__gt=now + TOLERANCE)
        counts = DeliveryCount.objects.using(self._using).filter(start__gte=now.replace(second=0, microsecond=0))
        leases = KeyLock.objects.using(self._using).filter(held_until__gt=now)
        messages = OutboxMessage.objects.using(self._using)
        waiting = messages.filter(available_at__gt=now, available_at__lt=HELD_BY_PAUSE).exclude(
            available_at__in=leases.values("held_until")
        )
        new = waiting.filter(occurred_at__gt=now, available_at=F("occurred_at"))
        retried = waiting.filter(last_error_at__gt=now, available_at__gt=F("last_error_at"))
        with self._transaction():
            if not reports.update(seen_at=now):
                # Another relay was faster.
                return
            counts.delete()
            messages.filter(failed_at__gt=now).update(failed_at=now)
            moved = new.update(available_at=now)
            moved += retried.update(available_at=Value(now) + (F("available_at") - F("last_error_at")))
            ends = leases.filter(held_until__gt=now + datetime.timedelta(seconds=self._claim_timeout))
            self._leases = dict(ends.values_list("number", "held_until"))
        self._leases_end_at = boot_time() + self._claim_timeout
        logger.warning(
            "The clock of database %(database)r went back by %(seconds)s s. "
            f"{counted(moved, 'waiting message')} got new due times. Messages with a delay may be late by that time.",
            event="relay.clock_went_back",
            database=self._using,
            seconds=round(step.total_seconds()),
            count=moved,
        )

    def _transaction(self) -> AbstractContextManager[object]:
        store = get_store(connections[self._using])
        return store.transaction(self._claim_timeout, transactional=False)

    def _end_leases(self) -> None:
        leases = KeyLock.objects.using(self._using)
        with self._transaction():
            ended = [
                end for number, end in self._leases.items() if leases.filter(number=number, held_until=end).delete()[0]
            ]
            messages = OutboxMessage.objects.using(self._using).filter(available_at__in=ended)
            messages.update(available_at=DatabaseNow())
        self._leases, self._leases_end_at = {}, math.inf
