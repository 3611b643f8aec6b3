"""The format of an archived message: one line of JSON, in which JSON columns are strings: the text of the database."""

import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django_outbox.stores.removal import JSON, NAMES, TIMES, FullRow
from django_outbox.stores.rows import read_text, read_time, read_uuid

_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(NAMES, read_text),
    **dict.fromkeys(TIMES, lambda value: read_time(value).isoformat()),
    "id": int,
    "message_id": read_uuid,
    "attempts": int,
    "blocks_key": bool,
}
"""The reader of each column that is not NULL."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message in an archive. JSON columns are text, exactly as the database returned it."""

    id: int
    message_id: uuid.UUID
    type: str
    topic: str
    key: str
    publisher: str
    occurred_at: datetime.datetime
    processed_at: datetime.datetime | None
    failed_at: datetime.datetime | None
    attempts: int
    error: str
    error_class: str
    first_error_at: datetime.datetime | None
    last_error_at: datetime.datetime | None
    dead_lettered_at: datetime.datetime | None
    blocks_key: bool
    headers: str
    history: str | None
    original: str | None
    payload: str


def encode(row: FullRow) -> bytes:
    """Return a row, as `Removal.read` returns it, as one line.

    `unreadable` has the names of columns that cannot be read, whose bytes are escaped.
    """
    values: dict[str, Any] = {}
    unreadable = []
    for name, value in zip(NAMES, row, strict=True):
        try:
            values[name] = None if value is None else _READERS[name](value)
        except Exception:
            # SQLite's columns may hold anything.
            values[name] = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
            unreadable.append(name)
    if unreadable:
        values["unreadable"] = unreadable
    return f"{json.dumps(values, ensure_ascii=False)}\n".encode()


def decode(values: dict[str, Any]) -> ArchivedMessage:
    """Read a line, given as a dict. Raises ValueError with the reason, which quotes none of it, if it is invalid."""
    if unreadable := values.get("unreadable"):
        raise ValueError(f"{', '.join(unreadable)} could not be read when it was archived")
    try:
        values["message_id"] = uuid.UUID(values["message_id"])
        for name in TIMES:
            if values[name] is not None:
                values[name] = datetime.datetime.fromisoformat(values[name])
        if not all(isinstance(values[name], str | None) for name in JSON):
            raise TypeError
        return ArchivedMessage(**values)
    except Exception as error:
        raise ValueError(f"it is not a message ({type(error).__name__})") from None
