"""The format of an archived message: one line of JSON, in which JSON columns are the text of the database."""

import base64
import datetime
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Any

from django_outbox.stores.removal import JSON, NAMES, TIMES, FullRow
from django_outbox.stores.rows import read_text, read_time, read_uuid

_BEGIN = {name: f',"{name}":' for name in JSON}
"""The text before the value of each JSON column. The JSON columns are at the end of the line, in this order."""

_EXACT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finds the end of a value, and converts no number."""

UUID_LENGTH = 36


class InvalidLine(ValueError):
    """A line of an archive is not a message. The text states why, and quotes none of it."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message in an archive. The last four columns are JSON text, exactly as the database returned them.

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
    history: str
    original: str
    payload: str
    unreadable: dict[str, str]


def encode(row: FullRow) -> bytes:
    """Return a row, as `Removal.read` returns it, as one line. A column that cannot be read is blank."""
    texts: list[bytes] = []
    unreadable: dict[str, str] = {}
    for name, write, value in zip(NAMES, _WRITERS.values(), row, strict=True):
        try:
            text = write(value).encode()
        except Exception:
            # SQLite's columns may hold anything.
            text = _BLANKS.get(name, '""').encode()
            raw = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
            unreadable[name] = base64.b64encode(raw).decode()
        texts.append(text)
    texts.insert(-len(JSON), f',"unreadable":{json.dumps(unreadable)}'.encode() if unreadable else b"")
    return _LINE % tuple(texts)


def _write_number(value: Any) -> str:
    return str(int(value))


def _write_text(value: Any) -> str:
    return quoted(value if type(value) is str else read_text(value))


def _write_uuid(value: Any) -> str:
    return f'"{value if type(value) is str and len(value) == UUID_LENGTH else read_uuid(value)}"'


def _write_time(value: Any) -> str:
    if value is None:
        return "null"
    return f'"{value[:10]}T{value[11:]}+00:00"' if type(value) is str else f'"{read_time(value).isoformat()}"'


def _write_json(value: Any, expected: type) -> str:
    text = value if type(value) is str else read_text(value)
    if type(value) is bytes:
        # Of SQLite, and so it may not be JSON.
        stripped = text.strip(" \t\r\n")
        found, end = _EXACT.raw_decode(stripped)
        if end < len(stripped) or not isinstance(found, expected):
            raise ValueError("it is not JSON of its type")
    # MariaDB keeps JSON as it was written. Outside of strings, a line break is a blank.
    return text.replace("\r\n", " ").replace("\n", " ") if "\n" in text else text


_WRITERS: dict[str, Callable[[Any], str]] = {
    **dict.fromkeys(NAMES, _write_text),
    **dict.fromkeys(TIMES, _write_time),
    "id": _write_number,
    "attempts": _write_number,
    "message_id": _write_uuid,
    "blocks_key": lambda value: "true" if value else "false",
    "headers": lambda value: _write_json(value, dict),
    "history": lambda value: "null" if value is None else _write_json(value, list),
    "original": lambda value: "null" if value is None else _write_json(value, dict),
    "payload": lambda value: _write_json(value, object),
}
"""The writer of each column, in the order of `NAMES`."""

_SCALARS = [f'"{name}":%b' for name in NAMES if name not in JSON]

_LINE = f"{{{','.join(_SCALARS)}%b{''.join(f'{begin}%b' for begin in _BEGIN.values())}}}\n".encode()
"""A line, in which `%b` stands for the text of each column, and for the columns that cannot be read, if any."""

_BLANKS = {
    **dict.fromkeys((*TIMES, "history", "original", "payload"), "null"),
    "headers": "{}",
    "message_id": f'"{uuid.UUID(int=0)}"',
    "attempts": "0",
}
"""Values of columns that cannot be read; others are blank text."""


def decode(line: bytes) -> ArchivedMessage:
    """Read a line. Raises `InvalidLine` if it is not a message."""
    try:
        text = line.decode().rstrip("\n")
        # All values before the headers are scalars, and in a string the quotes would be escaped.
        end = text.index(_BEGIN["headers"])
        head: dict[str, Any] = json.loads(f"{text[:end]}}}")
        head |= {"message_id": uuid.UUID(head["message_id"]), "unreadable": head.get("unreadable", {})}
        for name, beginning in _BEGIN.items():
            if not text.startswith(beginning, end) or not text.endswith("}"):
                raise InvalidLine(f"it has no {name}")
            begin = end + len(beginning)
            # The payload is not read: however deep it is, it ends where the line ends.
            end = len(text) - 1 if name == "payload" else _EXACT.raw_decode(text, begin)[1]
            head[name] = text[begin:end]
        for name in TIMES:
            if head[name] is not None:
                head[name] = datetime.datetime.fromisoformat(head[name])
        return ArchivedMessage(**head)
    except InvalidLine:
        raise
    except Exception as error:
        raise InvalidLine(f"it is not a message ({type(error).__name__})") from None


def reason_not_restorable(message: ArchivedMessage) -> str:
    """Return the reason that a message cannot be written to the table again; blank if it can."""
    if message.unreadable:
        return f"{', '.join(sorted(message.unreadable))} could not be read when it was archived"
    try:
        _EXACT.decode(message.payload)
    except ValueError:
        return "its payload is not valid JSON"
    except RecursionError:
        # The database decides whether it takes it.
        pass
    return ""
