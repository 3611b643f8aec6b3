"""What a handler gets of a message's payload."""

import json
from typing import Any

from django_outbox.events import decode_event
from django_outbox.events.registry import registry
from django_outbox.messages import Message


def decode(message: Message) -> Any:
    """Return the event of a message, or its decoded payload if no event is registered for its type.

    Raises:
        ValueError: the payload cannot be decoded, or does not match the class of the event.
        UnknownEvent: the version of the event is newer than the class.
    """
    if registry.find(message.type) is None:
        return json.loads(message.payload)
    return decode_event(message.type, message.payload, message.headers)
