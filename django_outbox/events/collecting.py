"""`collect_events`: a unit of work that enqueues its events at its end."""

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import router, transaction

from django_outbox.db.transactions import refuse_async
from django_outbox.enqueueing.enqueue import enqueue_messages
from django_outbox.enqueueing.events import ATTRIBUTE, Event, as_message
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.models import OutboxMessage

__all__ = ["EventCollector", "collect_events"]


class EventCollector:
    """The events of a unit of work, in the order in which they were recorded.

    Attributes:
        events: the events that were recorded so far.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._ended = False

    def record(self, event: Event) -> None:
        """Add an event.

        Raises:
            InvalidMessage: it is not an event.
            TransactionRequired: the block of `collect_events` has ended.
        """
        if self._ended:
            raise TransactionRequired(
                "record() was called after the end of the block `with collect_events()`, so the event would never be "
                "enqueued. Record it in the block."
            )
        if not hasattr(type(event), ATTRIBUTE):
            raise InvalidMessage("event", f"must be an event, not {type(event).__qualname__}.")
        self.events.append(event)

    def _end(self) -> None:
        self._ended = True


@contextmanager
def collect_events(*, using: str | None = None) -> Iterator[EventCollector]:
    """Run a block in a transaction, and enqueue the events that it records at its end, in the same transaction.

    If the block raises an exception, nothing is enqueued, and the database is as it was before the block.

    Args:
        using: the database alias, as in `enqueue`.

    Raises:
        InvalidEvent: an event does not match its class. The block is rolled back.
        InvalidMessage: an event cannot be stored. The block is rolled back.
        SynchronousOnlyOperation: it was called in async code, where Django has no transactions.
    """
    using = using or router.db_for_write(OutboxMessage)
    collector = EventCollector()
    refuse_async("collect_events", using)
    with transaction.atomic(using=using):
        try:
            yield collector
        finally:
            collector._end()
        if collector.events:
            enqueue_events(collector.events, using)


def enqueue_events(events: Sequence[Event], using: str, message_ids: Sequence[uuid.UUID] = ()) -> None:
    """Enqueue at least one event in the current transaction. Messages get new IDs by default.

    The field of an InvalidMessage begins with the name of the event's class.
    """
    messages = [as_message(event) for event in events]
    for message, message_id in zip(messages, message_ids, strict=False):
        message.message_id = message_id
    enqueue_messages(messages, using=using, prefix=lambda position: f"{type(events[position]).__qualname__}.")
