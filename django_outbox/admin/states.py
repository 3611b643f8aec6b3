"""The states that the admin's list shows, in an order that an index of the table provides."""

from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.models import OutboxMessageQuerySet, Status

LIMIT = 10_000
"""Maximum number of messages that the list counts, that a filter searches, and that one action changes."""

PARAMETER = "state"
PUBLISHER_PARAMETER = "publisher"
ALL = "all"

STREAMED = "streamed"

STATES: dict[str, Any] = {
    Status.FAILED: Status.FAILED.label,
    Status.PENDING: Status.PENDING.label,
    Status.PROCESSED: Status.PROCESSED.label,
    STREAMED: _("Streamed"),
    ALL: _("All"),
}
"""The choices of the state filter, the most important to an operator first."""

TITLES: dict[str, Any] = {
    Status.FAILED: _("Failed messages"),
    Status.PENDING: _("Pending messages"),
    Status.PROCESSED: _("Processed messages"),
    STREAMED: _("Streamed messages"),
    ALL: _("All messages"),
}

ORDER = {
    Status.FAILED: ("-failed_at", "-id"),
    Status.PENDING: ("available_at", "id"),
    Status.PROCESSED: ("-processed_at", "-id"),
    STREAMED: ("-publisher", "-xid", "-id"),
    ALL: ("-id",),
}

TIME_OF: dict[str, str] = {
    Status.FAILED: "failed_at",
    Status.PENDING: "available_at",
    Status.PROCESSED: "processed_at",
}
"""The time when a message came into its state, or when it is due."""


def state_of(request: HttpRequest) -> str:
    """Return the state that the request asks for, one of `STATES`; failed by default."""
    state = request.GET.get(PARAMETER, "")
    return state if state in STATES else Status.FAILED.value


def pending_publisher(request: HttpRequest) -> str:
    """Return the publisher of the listed pending messages: no index orders all of them by due time."""
    return request.GET.get(PUBLISHER_PARAMETER) or "default"


def in_state(messages: OutboxMessageQuerySet, state: str) -> OutboxMessageQuerySet:
    """Return the messages that are in this state."""
    if state == STREAMED:
        return messages.streamed()
    return messages if state == ALL else messages.with_status(Status(state))
