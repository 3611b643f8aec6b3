"""Choose the publishers of a message: one row each."""

import copy

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage
from django_outbox.models.message import BY_ROUTES


def route(message: OutboxMessage) -> list[OutboxMessage]:
    """Return a message and its copies for further publishers, with the same `message_id`.

    Args:
        message: a valid message. If it names no publisher, it gets the first one that `OUTBOX["ROUTES"]` chooses for
            its type.
    """
    if not isinstance(message.publisher, type(BY_ROUTES)):
        return [message]
    first, *others = get_settings().publishers_of(message.type)
    message.publisher = first
    messages = [message]
    for publisher_alias in others:
        messages.append(other := copy.copy(message))
        other.publisher = publisher_alias
    return messages
