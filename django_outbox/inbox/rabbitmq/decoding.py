"""Read a message's AMQP properties."""

import datetime
from typing import Any

from pika.spec import BasicProperties

from django_outbox.inbox.base import Incoming

CORRELATION_ID = "correlation_id"


def read_message(tag: int, routing_key: Any, properties: BasicProperties, body: bytes, *, key_header: str) -> Incoming:
    """Return a message as the inbox reads it.

    The property `type` is the type; without it, the routing key is. The key is in a header. The property
    `correlation_id` becomes a header if there is none of that name.
    """
    headers: dict[str, Any] = dict(properties.headers or {})
    key = headers.pop(key_header, None)
    if properties.correlation_id and CORRELATION_ID not in headers:
        headers[CORRELATION_ID] = text_of(properties.correlation_id)
    topic = text_of(routing_key)
    return Incoming(
        tag=tag,
        body=body,
        message_id=text_of(properties.message_id),
        type=text_of(properties.type) or topic,
        topic=topic,
        key=text_of(key),
        headers=headers,
        encoding=text_of(properties.content_encoding),
        sent_at=_read_time(properties.timestamp),
    )


def text_of(value: object) -> str:
    """Return a property or a header as text; blank if there is none. pika returns bytes if it is not UTF-8."""
    if value is None:
        return ""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _read_time(timestamp: object) -> datetime.datetime | None:
    if not isinstance(timestamp, int):
        return None
    try:
        return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Milliseconds, for example.
        return None
