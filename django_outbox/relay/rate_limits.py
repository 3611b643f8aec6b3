"""The rate limit of a publisher, which all relays of a database keep together."""

import datetime
import math
import time

from django.db import connections, transaction

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import RateLimit
from django_outbox.relay.sources import TableSource
from django_outbox.stores import get_store

SLOT = 0.2
"""Length of a reservation in seconds, if at least one message fits: each costs a write."""

CREDIT = 0.25
"""Seconds that a relay may be late without a loss. After an idle time, the reservations that begin within this time
come at once."""

MAX_SECONDS = 30.0
"""Time after which the database ends a transaction that hangs while it reserves."""


class RateLimiter:
    """Reserves messages for one worker.

    A row of the database has the time up to which messages are reserved, so relays in several processes share a
    limit. A worker reserves the messages of a short time in its own transaction, waits until this time begins without
    a transaction, and then claims no more than it has reserved. A worker that finds nothing gives back what is left,
    and looks for messages before it reserves again, so an idle relay writes nothing.
    """

    def __init__(self, using: str, publisher_alias: str, rate: float, source: TableSource) -> None:
        self._using = using
        self._publisher_alias = publisher_alias
        self._rate = rate
        self._source = source
        self._size = max(round(rate * SLOT), 1)
        self._begins_at = -math.inf
        self._is_idle = True
        self._end: datetime.datetime | None = None
        self.reserved = 0

    def reserve(self) -> float:
        """Reserve messages unless some are reserved, and return the seconds until they may be claimed."""
        if not self.reserved:
            self._begins_at = time.monotonic() + self._move(self._size)
            self.reserved = self._size
        return self._begins_at - time.monotonic()

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
            self._move(-self.reserved)
            self.reserved = 0

    def _move(self, count: int) -> float:
        """Reserve time for `count` messages, or give it back if that is negative; return the seconds until then."""
        step = datetime.timedelta(seconds=count / self._rate)
        limits = RateLimit.objects.using(self._using)
        rows = limits.filter(publisher=self._publisher_alias)
        connection = connections[self._using]
        nested = connection.in_atomic_block
        with self._source.watch(), transaction.atomic(using=self._using):
            if not nested:
                get_store(connection).begin(MAX_SECONDS)
            # This locks the row, or the database, before it is read.
            if not rows.update(publisher=self._publisher_alias):
                limits.bulk_create([RateLimit(publisher=self._publisher_alias)], ignore_conflicts=True)
                rows.update(publisher=self._publisher_alias)
            reserved_until, now = rows.values_list("reserved_until", DatabaseNow()).get()
            begins_at = max(reserved_until, now - datetime.timedelta(seconds=CREDIT)) if count > 0 else reserved_until
            if count > 0 or reserved_until == self._end:
                self._end = begins_at + step
                rows.update(reserved_until=self._end)
        return float((begins_at - now).total_seconds())
