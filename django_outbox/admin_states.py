"""Which messages the admin's list shows, and in what order: always one that an index of the table has."""

from typing import Any

from django.db import connections
from django.db.models import Min
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.models import OutboxMessageQuerySet, Status

LIMIT = 10_000
"""The most messages that the list counts, that it looks through for a type or publisher, and that one action takes."""

MAX_PUBLISHERS = 50
"""The most publishers that are offered to choose from."""

PARAMETER = "state"
ALL = "all"

STATES: dict[str, Any] = {
    Status.FAILED: Status.FAILED.label,
    Status.PENDING: Status.PENDING.label,
    Status.PROCESSED: Status.PROCESSED.label,
    ALL: _("All"),
}
"""What may be asked for, in the order in which an operator does."""

TITLES: dict[str, Any] = {
    Status.FAILED: _("Failed messages"),
    Status.PENDING: _("Pending messages"),
    Status.PROCESSED: _("Processed messages"),
    ALL: _("All messages"),
}

ORDER = {
    Status.FAILED: ("-failed_at", "-id"),
    Status.PENDING: ("available_at", "id"),
    Status.PROCESSED: ("-processed_at", "-id"),
    ALL: ("-id",),
}


def state_of(request: HttpRequest) -> str:
    """Return the state that is asked for, one of `STATES`: the failed messages where nothing else is."""
    state = request.GET.get(PARAMETER, "")
    return state if state in STATES else Status.FAILED.value


def in_state(messages: OutboxMessageQuerySet, state: str) -> OutboxMessageQuerySet:
    """Return those of the messages that are in this state."""
    return messages if state == ALL else messages.with_status(Status(state))


def due_first(messages: OutboxMessageQuerySet, *fields: str, limit: int) -> tuple[list[tuple[Any, ...]], bool]:
    """Return when pending messages of one publisher are due, their ids and further fields, and whether these are all.

    Their indexes have those without a key in the order in which they are due, and those with a key in that of the keys.
    So of more than `limit` with a key those are returned whose keys come first, and only they are put in order. Failed
    messages that hold back their keys are read on the way.
    """
    rows: list[tuple[Any, ...]] = []
    for part, order in (
        (messages.filter(partition=0), ("available_at", "id")),
        (messages.filter(partition__gt=0, processed_at=None), ("partition", "id")),
    ):
        rows += part.order_by(*order).values_list("available_at", "id", *fields)[: limit + 1]
    rows.sort(key=lambda row: row[:2])
    return rows[:limit], len(rows) <= limit


def publishers_in_use(messages: OutboxMessageQuerySet) -> list[str]:
    """Return the publishers of the pending messages, those that the settings no longer know among them.

    It jumps through the index from one to the next, with a query each. Where the index is not partial, publishers
    whose messages are all processed or failed are found too.
    """
    rows = messages.order_by()
    if connections[messages.db].features.supports_partial_indexes:
        rows = rows.pending()
    found: list[str] = []
    publisher = rows.aggregate(next=Min("publisher"))["next"]
    while publisher is not None and len(found) < MAX_PUBLISHERS:
        found.append(publisher)
        publisher = rows.filter(publisher__gt=publisher).aggregate(next=Min("publisher"))["next"]
    return found
