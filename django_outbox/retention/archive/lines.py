"""The format of an archived message: one line of JSON, in which JSON columns are strings: the text of the database."""

import base64
import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
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

_BLANKS = {**dict.fromkeys(TIMES), "message_id": str(uuid.UUID(int=0)), "attempts": 0}
"""Values of columns that cannot be read; others are blank text."""

_EXACT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Converts no number."""


class InvalidLine(ValueError):
    """A line of an archive is not a message. The text states why, and quotes none of it."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message in an archive. JSON columns are text, exactly as the database returned it.

    Columns that could not be read are blank; `unreadable` has their bytes in Base64, by name.
    """

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
    unreadable: dict[str, str] = field(default_factory=dict)


def encode(row: FullRow) -> bytes:
    """Return a row, as `Removal.read` returns it, as one line. A column that cannot be read is blank."""
    values: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, value in zip(NAMES, row, strict=True):
        try:
            values[name] = None if value is None else _READERS[name](value)
        except Exception:
            # SQLite's columns may hold anything.
            values[name] = _BLANKS.get(name, "")
            raw = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
            unreadable[name] = base64.b64encode(raw).decode()
    if unreadable:
        values["unreadable"] = unreadable
    return f"{json.dumps(values, ensure_ascii=False)}\n".encode()


def decode(line: bytes) -> ArchivedMessage:
    """Read a line. Raises `InvalidLine` if it is not a message."""
    try:
        values: dict[str, Any] = json.loads(line)
        values["message_id"] = uuid.UUID(values["message_id"])
        for name in TIMES:
            if values[name] is not None:
                values[name] = datetime.datetime.fromisoformat(values[name])
        if not all(isinstance(values[name], str | None) for name in JSON):
            raise TypeError
        return ArchivedMessage(**values)
    except Exception as error:
        raise InvalidLine(f"it is not a message ({type(error).__name__})") from None


def reason_not_restorable(message: ArchivedMessage) -> str:
    """Return the reason that a message cannot be written to the table again; blank if it can."""
    if message.unreadable:
        return f"{', '.join(sorted(message.unreadable))} could not be read when it was archived"
    for name in JSON:
        try:
            _EXACT.decode(getattr(message, name) or "null")
        except ValueError:
            return f"its {name} is not valid JSON"
        except RecursionError:
            # The database decides whether it takes it.
            pass
    return ""
