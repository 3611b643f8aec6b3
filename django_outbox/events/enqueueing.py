"""Enqueue recorded events; an error names the event, because its caller made no list of messages."""

import uuid
from collections.abc import Sequence

from django_outbox.enqueueing.enqueue import enqueue_messages
from django_outbox.enqueueing.events import Event, as_message


def enqueue_events(events: Sequence[Event], using: str, message_ids: Sequence[uuid.UUID] = ()) -> None:
    """Enqueue events in the current transaction.

    Args:
        events: at least one.
        using: the database alias.
        message_ids: the IDs of the messages; new ones by default.

    Raises:
        InvalidEvent: an event does not match its class.
        InvalidMessage: an event cannot be stored. The field begins with the name of its class.
    """
    messages = [as_message(event) for event in events]
    for message, message_id in zip(messages, message_ids, strict=False):
        message.message_id = message_id
    enqueue_messages(messages, using=using, prefix=lambda position: f"{type(events[position]).__qualname__}.")
