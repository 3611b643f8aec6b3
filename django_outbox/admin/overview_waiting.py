"""Messages that wait for another attempt, grouped by cause, for the overview."""

import datetime
from dataclasses import dataclass

from django.db import connections

from django_outbox.models import HELD_BY_PAUSE, OutboxMessage
from django_outbox.models.message import WITHOUT_KEY
from django_outbox.monitoring.figures import Status
from django_outbox.monitoring.queues import list_retrying
from django_outbox.stores import get_store

MAX_WAITING = 1000
"""Maximum number of waiting messages of a publisher that are looked at, and as many of those with a key."""


@dataclass(slots=True)
class WaitingGroup:
    """Messages that wait for another attempt because of the same error.

    Args:
        publisher, error_class, type: what they have in common.
        count: their number among the messages that were looked at.
        first, last: the times of their first and their last error.
    """

    publisher: str
    error_class: str
    type: str
    count: int
    first: datetime.datetime
    last: datetime.datetime


def read_waiting(status: Status) -> tuple[list[WaitingGroup], bool]:
    """Return the groups of all publishers, the largest first, and whether no message was left out."""
    groups: dict[tuple[str, str, str], WaitingGroup] = {}
    complete = True
    for publisher in status.publishers:
        if publisher.retrying:
            complete &= _add(groups, status.using, publisher.alias, status.at)
    return sorted(groups.values(), key=lambda group: (-group.count, group.publisher, group.type)), complete


def _add(groups: dict[tuple[str, str, str], WaitingGroup], using: str, publisher: str, now: datetime.datetime) -> bool:
    messages = OutboxMessage.objects.using(using)
    unkeyed = messages.filter(
        WITHOUT_KEY, publisher=publisher, available_at__gt=now, available_at__lt=HELD_BY_PAUSE
    ).order_by("available_at", "id")
    ids = list(unkeyed.values_list("id", flat=True)[:MAX_WAITING])
    heads = list_retrying(get_store(connections[using]), publisher, MAX_WAITING)
    columns = ("publisher", "error_class", "type", "first_error_at", "last_error_at")
    for part in (ids, heads):
        rows = messages.filter(pk__in=part, attempts__gt=0, available_at__lt=HELD_BY_PAUSE).order_by("id")
        for name, error_class, type, first, last in rows.values_list(*columns):
            if first is None or last is None:
                continue
            group = groups.setdefault((name, error_class, type), WaitingGroup(name, error_class, type, 0, first, last))
            group.count += 1
            group.first, group.last = min(group.first, first), max(group.last, last)
    return len(ids) < MAX_WAITING and len(heads) < MAX_WAITING
