"""`NewMessage`: a message to insert, for writers that insert many."""

import datetime
import uuid
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class NewMessage:
    """The fields of a message. Unlike a model's instance, it costs next to nothing to make.

    Args:
        text: the JSON that the payload was read from. It is what is stored, because decoding shortens numbers.
        occurred_at, available_at: None for now.
    """

    message_id: uuid.UUID
    type: str
    publisher: str
    payload: Any
    text: str
    topic: str = ""
    key: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    occurred_at: datetime.datetime | None = None
    available_at: datetime.datetime | None = None
