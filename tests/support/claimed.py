"""Messages as the relay claims them, for tests of publishers."""

import datetime
import uuid
from typing import Any

from django_outbox.messages import Message

AGAIN = {"outbox-redelivered-at": "2026-05-31T08:30:00.123456Z"}
"""The headers of a message that an operator delivers again."""


def make_message(topic: str = "", payload: bytes = b"{}", **fields: Any) -> Message:
    """Return a message as the relay claims it, with ordinary values for fields that are not given."""
    values = {
        "id": 1,
        "message_id": str(uuid.uuid4()),
        "type": "order.created",
        "key": "",
        "headers": {},
        "occurred_at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc),
        "attempts": 0,
    }
    return Message(topic=topic, payload=payload, **{**values, **fields})
