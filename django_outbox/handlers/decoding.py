"""What a handler gets of a message's payload."""

import json
from typing import Any

from django_outbox.messages import Message


def decode(message: Message) -> Any:
    """Return the event of a message, or its decoded payload if its type is not that of an event.

    Raises:
        ValueError: the payload cannot be decoded.
    """
    return json.loads(message.payload)
