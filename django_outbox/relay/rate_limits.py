"""The rate limit of a publisher, which all relays of a database keep together."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction
from django.db.models import QuerySet

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import RateLimit
from django_outbox.relay.sources import Source
from django_outbox.stores import get_store

SLOT = 0.2
"""Length of a reservation in seconds, if at least one message fits. Each costs a write."""

CREDIT = datetime.timedelta(seconds=0.25)
"""Maximum delay that a relay makes up for. After an idle time, it reserves this much at once."""

MAX_SECONDS = 30.0
"""Time after which the database ends a transaction that hangs while it reserves."""


class RateLimiter:
    """Reserves messages for one worker.

    A row of the database has the time up to which messages are reserved, so relays in several processes share a
    limit. When this time has come, one worker reserves the messages of a short time in its own transaction, and claims
    no more than it has reserved; the others wait without a transaction. Nothing is reserved in advance, so a process
    that is killed leaves one reservation at most, and a longer one shows that the clock went back. A worker that finds
    nothing gives back what is left, and looks for messages before it reserves again, so an idle relay writes nothing.
    """

    def __init__(self, using: str, publisher_alias: str, rate: float, source: Source) -> None:
        self._using = using
        self._publisher_alias = publisher_alias
        self._rate = rate
        self._source = source
        self._size = max(round(rate * SLOT), 1)
        self._is_idle = True
        self._end: datetime.datetime | None = None
        self.reserved = 0

    def reserve(self) -> float:
        """Reserve messages unless some are reserved; return 0, or the seconds after which to try again."""
        if self.reserved:
            return 0.0
        step = self._duration(self._size)
        with self._source.table.watch():
            times = self._rows.values_list("reserved_until", DatabaseNow()).first()
        if times is not None:
            reserved_until, now = times
            if (begin := find_begin(reserved_until, now, step)) > now:
                return float((begin - now).total_seconds())
        with self._locked() as (reserved_until, now):
            begin = find_begin(reserved_until, now, step)
            if begin <= now:
                self._rows.update(reserved_until=begin + step)
        if begin > now:
            return float((begin - now).total_seconds())
        self.reserved, self._end = self._size, begin + step
        return 0.0

    def look_for_work(self) -> bool:
        """Return whether to go on: messages are reserved, the last claim found some, or some are due."""
        if self.reserved or not self._is_idle:
            return True
        with self._source.claim(1) as claim:
            self._is_idle = not claim.messages
        if not self._is_idle:
            # The message went back.
            self._source.rewind()
        return not self._is_idle

    def note(self, claimed: int, used: int) -> None:
        self.reserved = max(self.reserved - used, 0)
        if not claimed:
            self._is_idle = True
            self.release()

    def release(self) -> None:
        """Give back what is reserved, unless another worker has reserved the time behind it."""
        if self.reserved:
            with self._locked() as (reserved_until, _):
                if reserved_until == self._end:
                    self._rows.update(reserved_until=reserved_until - self._duration(self.reserved))
            self.reserved = 0

    def _duration(self, count: int) -> datetime.timedelta:
        return datetime.timedelta(seconds=count / self._rate)

    @property
    def _rows(self) -> "QuerySet[RateLimit]":
        return RateLimit.objects.using(self._using).filter(publisher=self._publisher_alias)

    @contextmanager
    def _locked(self) -> Iterator[tuple[datetime.datetime, datetime.datetime]]:
        """Lock the row for a block, and return the time that it has and the current one."""
        connection = connections[self._using]
        nested = connection.in_atomic_block
        with self._source.table.watch(), transaction.atomic(using=self._using):
            if not nested:
                get_store(connection).begin(MAX_SECONDS)
            # This locks the row, or the database, before it is read.
            if not self._rows.update(publisher=self._publisher_alias):
                new = RateLimit(publisher=self._publisher_alias)
                RateLimit.objects.using(self._using).bulk_create([new], ignore_conflicts=True)
                self._rows.update(publisher=self._publisher_alias)
            yield self._rows.values_list("reserved_until", DatabaseNow()).get()


def find_begin(
    reserved_until: datetime.datetime, now: datetime.datetime, step: datetime.timedelta
) -> datetime.datetime:
    """Return when the next reservation begins: where the last one ends, but late by no more than the credit.

    A reservation begins by the time at which it is made, so none ends later than a step from now. If one does, the
    clock went back, and the next one begins now.
    """
    if reserved_until > now + step + CREDIT:
        return now
    return max(reserved_until, now - CREDIT)
