"""A message of a type with several handlers is split: each handler gets its own message and retries."""

import hashlib
import uuid
from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.db.models import TextField, Value

from django_outbox.handlers.registry import AnyHandler
from django_outbox.messages import Message
from django_outbox.models import OutboxMessage
from django_outbox.stores import get_store

HEADER = "outbox-handler"
"""The header of a handler's own message: the name of the handler, and the fields of the original that differ."""

FIELDS = ("name", "message_id", "key", "topic")

MAX_KEY_LENGTH = 255


def split(message: Message, handlers: Iterable[AnyHandler], *, publisher: str, using: str) -> None:
    """Insert a message for each handler, in the current transaction.

    They have the payload as it is in the database, and their own keys, so that handlers do not wait for each other.
    A message that was split before is not inserted again.
    """
    store = get_store(connections[using])
    store.insert_missing([_make(message, each.name, publisher) for each in handlers])


def find_name(message: Message) -> str | None:
    """Return the name of the handler that a message is for; None if the message was not split."""
    origin = _read_header(message)
    return None if origin is None else origin["name"]


def restore(message: Message) -> Message:
    """Return a handler's own message with the fields of the original; its `id` and `attempts` are its own."""
    origin = _read_header(message)
    if origin is None:
        return message
    headers = {name: value for name, value in message.headers.items() if name != HEADER}
    return message._replace(message_id=origin["message_id"], key=origin["key"], topic=origin["topic"], headers=headers)


def _make(message: Message, name: str, publisher: str) -> OutboxMessage:
    origin = dict(zip(FIELDS, (name, message.message_id, message.key, message.topic), strict=True))
    return OutboxMessage(
        message_id=_id_for(name, message.message_id),
        type=message.type,
        topic=name,
        key=_key(name, message.key),
        # As text: decoding would change numbers with many digits.
        payload=Value(message.payload.decode(), TextField()),
        headers={**message.headers, HEADER: origin},
        publisher=publisher,
        occurred_at=message.occurred_at,
    )


def _key(name: str, key: str) -> str:
    if not key:
        return ""
    own = f"{name}:{key}"
    return own if len(own.encode()) <= MAX_KEY_LENGTH else f"{name}:{hashlib.sha256(key.encode()).hexdigest()}"


def _id_for(name: str, message_id: str) -> uuid.UUID:
    """Return the ID of a handler's own message: always the same, so that it cannot be inserted twice."""
    return uuid.uuid5(uuid.UUID(message_id), name)


def _read_header(message: Message) -> dict[str, str] | None:
    """Return the header of a handler's own message; None if `split` did not write the message."""
    origin: Any = message.headers.get(HEADER)
    if not isinstance(origin, dict) or not all(isinstance(origin.get(field), str) for field in FIELDS):
        return None
    try:
        expected = _id_for(origin["name"], origin["message_id"])
    except ValueError:
        return None
    return origin if message.message_id == str(expected) else None
