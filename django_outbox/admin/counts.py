"""How many messages are in each state, counted up to a limit by an index."""

from dataclasses import dataclass

from django.db import connections
from django.db.models import Q
from django.utils.formats import number_format

from django_outbox.admin.states import ALL
from django_outbox.models import OutboxMessageQuerySet, Status

COUNT_LIMIT = 100_000
"""Maximum number of messages of a state that are counted."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """A number that was counted up to a limit; `more` if counting stopped there."""

    number: int
    more: bool = False

    def __str__(self) -> str:
        return f"{number_format(self.number, force_grouping=True)}{'+' if self.more else ''}"


def count_up_to(messages: OutboxMessageQuerySet, limit: int) -> Bounded:
    """Count the messages, but read no more than one row beyond the limit."""
    found = messages[: limit + 1].count()
    return Bounded(min(found, limit), found > limit)


def count_states(messages: OutboxMessageQuerySet) -> dict[str, Bounded | None]:
    """Count the messages of each state and of all states together; None if only a scan of the table could count them.

    Args:
        messages: all messages of one database, in no particular order.
    """
    limit = COUNT_LIMIT
    failed = count_up_to(messages.failed().order_by("failed_at"), limit)
    processed = count_up_to(messages.processed().order_by("processed_at"), limit)
    counts: dict[str, Bounded | None] = {
        Status.FAILED.value: failed,
        Status.PENDING.value: _count_pending(messages, failed, limit),
        Status.PROCESSED.value: processed,
    }
    known = [count for count in counts.values() if count]
    total = sum(count.number for count in known)
    more = total > limit or any(count.more for count in known)
    counts[ALL] = Bounded(min(total, limit), more) if more or len(known) == len(Status) else None
    return counts


def _count_pending(messages: OutboxMessageQuerySet, failed: Bounded, limit: int) -> Bounded | None:
    if connections[messages.db].features.supports_partial_indexes:
        return count_up_to(messages.pending().order_by("publisher", "blocks_key", "available_at"), limit)
    # No index has only the pending messages. One begins with the time of processing, so it leads to all that have none:
    # the failed and the pending messages.
    if failed.more:
        return None
    unprocessed = count_up_to(messages.filter(Q(processed_at=None)), limit + failed.number)
    # The failed messages were counted a moment earlier.
    return Bounded(max(unprocessed.number - failed.number, 0), unprocessed.more)
