"""A message's fields and headers as text, for brokers that have no message properties but text headers."""

import datetime
import json
from typing import Any

from django.utils.dateparse import parse_datetime

from django_outbox.messages import Message

MESSAGE_ID = "outbox-message-id"
TYPE = "outbox-type"
KEY = "outbox-key"
OCCURRED_AT = "outbox-occurred-at"
CONTENT_TYPE = "content-type"
CONTENT_ENCODING = "content-encoding"

_UTC = datetime.timezone.utc

FIELDS = (MESSAGE_ID, TYPE, KEY, OCCURRED_AT, CONTENT_TYPE, CONTENT_ENCODING)
"""Names that describe a received message."""

RESERVED = frozenset((MESSAGE_ID, TYPE, KEY, OCCURRED_AT, CONTENT_TYPE))
"""Names that describe the message. A header of the message with such a name, in any case, is not sent."""


def text_headers(message: Message) -> list[tuple[str, str]]:
    """Return a message's fields as headers, without an empty key, and then its own headers."""
    found = [
        (MESSAGE_ID, message.message_id),
        (TYPE, message.type),
        (OCCURRED_AT, format_time(message.occurred_at)),
        (CONTENT_TYPE, "application/json"),
    ]
    if message.key:
        found.append((KEY, message.key))
    if message.headers:
        found += own_headers(message)
    return found


def format_time(time: datetime.datetime) -> str:
    """Return a time in UTC in ISO 8601."""
    return (time if time.tzinfo is _UTC else time.astimezone(_UTC)).isoformat()


def own_headers(message: Message, *, without: str = "") -> list[tuple[str, str]]:
    """Return the message's own headers as text; `without` is a prefix in lower case."""
    return [
        (name, to_text(value))
        for name, value in message.headers.items()
        if (lower := name.lower()) not in RESERVED and not (without and lower.startswith(without))
    ]


def to_text(value: Any) -> str:
    """Return the value of a header as text: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_time(text: str) -> datetime.datetime | None:
    """Return a time in ISO 8601 or RFC 3339; None if it is something else, or has no offset from UTC."""
    try:
        found = parse_datetime(text.upper())
    except ValueError:
        return None
    return found if found is not None and found.tzinfo else None
