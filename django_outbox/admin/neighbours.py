"""The messages around a message: the next ones in its state's list, and the others of its key."""

from dataclasses import dataclass, field
from typing import Any

from django_outbox.admin.counts import Bounded, count_up_to
from django_outbox.admin.search import of_partition
from django_outbox.admin.states import TIME_OF
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Status
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY

QUEUE_LIMIT = 1000
"""Maximum number of messages of a key that are counted."""

SHOWN = 5
"""Maximum number of messages of a key that are shown before, and after, a message."""

FIELDS = ("id", "type", "key", "attempts", "available_at", "processed_at", "failed_at", "error_class")


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The messages around a message.

    Attributes:
        newer: the one above it in the list of its state; None if there is none.
        older: the one below it.
        before: the nearest messages that are ahead of it in the queue of its key, in order.
        after: the nearest messages behind it.
        waiting: how many messages wait behind it; None if it has no key.
    """

    newer: OutboxMessage | None = None
    older: OutboxMessage | None = None
    before: list[OutboxMessage] = field(default_factory=list)
    after: list[OutboxMessage] = field(default_factory=list)
    waiting: Bounded | None = None


def find_neighbours(messages: OutboxMessageQuerySet, message: OutboxMessage) -> Neighbours:
    """Return the messages around a message; each is found by an index.

    Args:
        messages: all messages of the database of `message`.
        message: a saved message.
    """
    newer, older = _in_list(messages, message)
    if not message.partition:
        return Neighbours(newer, older)
    queue = of_partition(messages, message.publisher, message.partition).only(*FIELDS)
    before = [other for other in queue.filter(id__lt=message.pk).order_by("-id")[:SHOWN] if other.key == message.key]
    behind = queue.filter(id__gt=message.pk).order_by("id")
    after = [other for other in behind[:SHOWN] if other.key == message.key]
    return Neighbours(newer, older, before[::-1], after, count_up_to(behind, QUEUE_LIMIT))


def _in_list(
    messages: OutboxMessageQuerySet, message: OutboxMessage
) -> tuple[OutboxMessage | None, OutboxMessage | None]:
    """Return the messages of the same state before and after this one by the time of that state, and then by id.

    A pending message's neighbours have the same publisher, and like it either have a key or have none.
    """
    name = TIME_OF[message.status]
    time = getattr(message, name)
    group: Any = messages.with_status(message.status).only(*FIELDS)
    if message.status is Status.PENDING:
        group = group.filter(WITH_KEY if message.partition else WITHOUT_KEY, publisher=message.publisher)
    # A range of the index, of which only those with an equal time are stepped over.
    later = group.filter(**{f"{name}__gte": time}).exclude(**{name: time, "id__lte": message.pk})
    earlier = group.filter(**{f"{name}__lte": time}).exclude(**{name: time, "id__gte": message.pk})
    return later.order_by(name, "id").first(), earlier.order_by(f"-{name}", "-id").first()
