"""The backlog of a publisher, counted up to a limit and seldom enough to cost little."""

import time

from django.db import connections
from django.db.models import Q

from django_outbox.db.functions import DatabaseNow
from django_outbox.models import OutboxMessage
from django_outbox.rates import Throttle

MIN_INTERVAL = 1.0
"""Minimum seconds between two counts."""


class Backlog:
    """Decides whether a publisher has too many due messages.

    Args:
        using: the database alias.
        publisher_alias: the publisher.
        limit: the backlog is too large from this number on, until it is at most half as large.
        min_interval: minimum seconds between two counts.
    """

    def __init__(self, using: str, publisher_alias: str, limit: int, min_interval: float = MIN_INTERVAL) -> None:
        self._using = using
        self._publisher_alias = publisher_alias
        self._limit = limit
        self._counts = Throttle(min_interval=min_interval)
        self.is_too_large = False

    def refresh(self) -> None:
        """Count again if that is due.

        Raises:
            DatabaseError: the database is unavailable.
        """
        if not self._counts.is_open:
            return
        began = time.monotonic()
        limit = self._limit // 2 if self.is_too_large else self._limit
        self.is_too_large = count_due(self._using, self._publisher_alias, limit + 1) > limit
        self._counts.spend(time.monotonic() - began)


def count_due(using: str, publisher_alias: str, limit: int) -> int:
    """Return the number of due messages of a publisher, at most `limit`. Each count reads an index up to the limit."""
    messages = OutboxMessage.objects.using(using).filter(publisher=publisher_alias)
    in_order = messages.order_by("publisher", "partition", "available_at", "id")
    due = Q(available_at__lte=DatabaseNow())
    count = in_order.filter(due, partition=0)[:limit].count()
    if count < limit:
        if connections[using].features.supports_partial_indexes:
            keyed = in_order.filter(due, partition__gt=0)
        else:
            # The index by due time has the processed messages as well there, so the one of the undelivered is read.
            undelivered = messages.filter(due, blocks_key=True, processed_at=None, partition__gt=0)
            keyed = undelivered.order_by("partition", "id")
        count += keyed[: limit - count].count()
    return count
