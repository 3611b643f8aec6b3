"""Enqueue recorded events; an error names the event, because its caller made no list of messages."""

import re
from collections.abc import Sequence

from django_outbox.enqueueing.enqueue import enqueue_many
from django_outbox.enqueueing.events import Event, as_message
from django_outbox.exceptions import InvalidMessage

_FIELD = re.compile(r"messages\[(\d+)\]\.(.*)")


def enqueue_events(events: Sequence[Event], using: str) -> None:
    """Enqueue events in the current transaction.

    Args:
        events: at least one.
        using: the database alias.

    Raises:
        InvalidEvent: an event does not match its class.
        InvalidMessage: an event cannot be stored. The field begins with the name of its class.
    """
    messages = [as_message(event) for event in events]
    try:
        enqueue_many(messages, using=using)
    except InvalidMessage as error:
        found = _FIELD.fullmatch(error.field)
        if found is None:
            raise
        name = type(events[int(found[1])]).__qualname__
        raise InvalidMessage(f"{name}.{found[2]}", error.problem, error.path) from error
