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
    try:
        if type(row[_TYPE]) is str:
            # Only SQLite returns bytes.
            texts = [
                "null" if value is None else write(value) for write, value in zip(_QUICK_WRITERS, row, strict=True)
            ]
            line = _LINE % tuple(texts)
            if "\n" not in line:
                return f"{line}\n".encode()
        columns = [begin + write(value) for (begin, write), value in zip(_COLUMNS, row, strict=True)]
        return f"{{{''.join(columns)}}}\n".encode()
    except Exception:
        return _encode_partly(row)


def _encode_partly(row: FullRow) -> bytes:
    """Encode a row with a column that cannot be read, because SQLite's columns may hold anything."""
    columns: list[str] = []
    unreadable: dict[str, str] = {}
    for name, (begin, write), value in zip(NAMES, _COLUMNS, row, strict=True):
        try:
            text = write(value)
            text.encode()
        except Exception:
            text = _BLANKS.get(name, '""')
            raw = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
            unreadable[name] = base64.b64encode(raw).decode()
        columns.append(begin + text)
    columns.insert(-len(JSON), f',"unreadable":{json.dumps(unreadable)}')
    return f"{{{''.join(columns)}}}\n".encode()


def _write_number(value: Any) -> str:
    return str(int(value))


def _write_boolean(value: Any) -> str:
    return "true" if value else "false"


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
    "blocks_key": _write_boolean,
    "headers": lambda value: _write_json(value, dict),
    "history": lambda value: "null" if value is None else _write_json(value, list),
    "original": lambda value: "null" if value is None else _write_json(value, dict),
    "payload": lambda value: _write_json(value, object),
}

_COLUMNS = [(f'{"," if index else ""}"{name}":', _WRITERS[name]) for index, name in enumerate(NAMES)]
"""Beginning and writer of each column."""

_TYPE = NAMES.index("type")

_QUICK: dict[Callable[[Any], str], Callable[[Any], str]] = {_write_text: quoted, _write_number: str}

_QUICK_WRITERS = [str if name in JSON else _QUICK.get(_WRITERS[name], _WRITERS[name]) for name in NAMES]
"""The writers for a database that returns text, and JSON without line breaks."""

_LINE = "{" + "".join(f"{begin}%s" for begin, _ in _COLUMNS) + "}"

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
