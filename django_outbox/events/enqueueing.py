"""Enqueue recorded events; an error names the event, because its caller made no list of messages."""

import re
import uuid
from collections.abc import Sequence

from django_outbox.enqueueing.enqueue import enqueue_many
from django_outbox.enqueueing.events import Event, as_message
from django_outbox.exceptions import InvalidMessage

_FIELD = re.compile(r"messages\[(\d+)\]\.(.*)")


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
    try:
        enqueue_many(messages, using=using)
    except InvalidMessage as error:
        found = _FIELD.fullmatch(error.field)
        if found is None:
            raise
        name = type(events[int(found[1])]).__qualname__
        raise InvalidMessage(f"{name}.{found[2]}", error.problem, error.path) from error
