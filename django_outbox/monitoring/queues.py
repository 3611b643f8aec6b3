"""Figures of a publisher's pending messages, each bounded and read from an index."""

import datetime
from dataclasses import dataclass

from django.db import connections
from django.db.models import Count as CountRows
from django.db.models import Q

from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY
from django_outbox.monitoring.heads import Heads
from django_outbox.monitoring.types import Count

MAX_COUNT = 100_000
"""Maximum number of entries of an index that one count reads."""

MAX_ROWS = 10_000
"""Maximum number of rows of the table that one count reads, because they cost more than entries of an index."""


@dataclass(frozen=True, slots=True)
class Queue:
    """A publisher's pending messages.

    Args:
        due: messages that could be delivered now, or that wait behind another one of their key.
        delayed: messages that wait for the time that `enqueue` was given.
        retrying: messages that wait for another attempt.
        oldest_due: since when the oldest message that could be delivered now has been due.
        oldest_is_exact: False if not all keys were looked at.
    """

    due: Count
    delayed: Count
    retrying: Count
    oldest_due: datetime.datetime | None
    oldest_is_exact: bool


def read_queue(using: str, publisher: str, now: datetime.datetime, heads: Heads) -> Queue:
    """Read the figures of a publisher's pending messages.

    Args:
        using: the database alias.
        publisher: the publisher's alias.
        now: the time on the database's clock.
        heads: the figures of the publisher's heads.
    """
    messages = OutboxMessage.objects.using(using).filter(publisher=publisher)
    messages = messages.order_by("publisher", "blocks_key", "available_at", "id")
    due = Q(available_at__lte=now)
    unkeyed = messages.filter(WITHOUT_KEY)
    unkeyed_due = _count(unkeyed.filter(due), MAX_COUNT, all=Q())["all"]
    unkeyed_later = _count(unkeyed.filter(available_at__gt=now), MAX_ROWS, all=Q(), tried=Q(attempts__gt=0))
    keyed = _count_keyed(messages, due)
    oldest = [unkeyed.filter(due).values_list("available_at", flat=True).first(), heads.oldest_due]
    later = unkeyed_later["all"] + keyed["all"] - keyed["due"]
    retrying = unkeyed_later["tried"] + heads.retrying
    return Queue(
        due=(unkeyed_due + keyed["due"]).up_to(MAX_COUNT),
        delayed=later - retrying,
        retrying=retrying,
        oldest_due=min(filter(None, oldest), default=None),
        oldest_is_exact=heads.complete,
    )


def _count_keyed(messages: OutboxMessageQuerySet, due: Q) -> dict[str, Count]:
    pending = Q(available_at__isnull=False)
    if connections[messages.db].features.supports_partial_indexes:
        return _count(messages.filter(WITH_KEY, pending), MAX_COUNT, all=Q(), due=due)
    # The index by due time has the processed messages as well there, so the one that ends at the undelivered is read.
    undelivered = messages.filter(blocks_key=True, processed_at=None).order_by("partition", "id")
    return _count(undelivered, MAX_COUNT, all=pending, due=due)


def _count(messages: OutboxMessageQuerySet, limit: int, **conditions: Q) -> dict[str, Count]:
    """Count the first messages that fulfil each condition, among at most `limit` ones."""
    counts = {"total": CountRows("pk")}
    for name, condition in conditions.items():
        counts[name] = CountRows("pk", filter=condition) if condition else CountRows("pk")
    figures = messages[: limit + 1].aggregate(**counts)
    more = figures["total"] > limit
    return {name: Count(min(figures[name], limit), more) for name in conditions}
