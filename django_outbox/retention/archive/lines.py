"""The format of an archived message: one line of JSON, in which JSON columns are the text of the database."""

import base64
import datetime
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as quoted
from typing import Any

from django_outbox.stores.removal import JSON, NAMES, TIMES
from django_outbox.stores.rows import read_text, read_time, read_uuid
from django_outbox.stores.types import Row

_BEGIN = {name: f',"{name}":' for name in JSON}
"""What precedes the value of each JSON column. They are at the end of the line, in this order."""

_EXACT = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
"""Finds the end of a value, and converts no number."""

_OPTIONAL = {"history", "original"}
_TYPES = {"headers": dict, "history": list, "original": dict}
"""The JSON columns that may be NULL, and the types of values."""

UUID_LENGTH = 36


class InvalidLine(ValueError):
    """A line of an archive is not a message. The text states why, and quotes none of it."""


@dataclass(frozen=True, slots=True)
class ArchivedMessage:
    """A message in an archive. The last four columns are JSON text, exactly as the database returned them.

    `unreadable` has the bytes, in Base64, of the columns that could not be read, by name. These are blank.
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


def encode(row: Row) -> bytes:
    """Return a row, as `Removal.read` returns it, as one line."""
    try:
        return _encode_quickly(row)
    except Exception:
        # SQLite returns bytes, and its columns may hold anything.
        return _encode_carefully(row)


def _encode_quickly(row: Row) -> bytes:
    (
        id,
        message_id,
        type,
        topic,
        key,
        publisher,
        occurred_at,
        processed_at,
        failed_at,
        attempts,
        error,
        error_class,
        first_error_at,
        last_error_at,
        dead_lettered_at,
        blocks_key,
        *texts,
    ) = row
    if len(message_id) != UUID_LENGTH:
        message_id = read_uuid(message_id)
    return (
        f'{{"id":{id},"message_id":"{message_id}","type":{quoted(type)},"topic":{quoted(topic)},"key":{quoted(key)},'
        f'"publisher":{quoted(publisher)},"occurred_at":{_time(occurred_at)},"processed_at":{_time(processed_at)},'
        f'"failed_at":{_time(failed_at)},"attempts":{attempts},"error":{quoted(error)},'
        f'"error_class":{quoted(error_class)},"first_error_at":{_time(first_error_at)},'
        f'"last_error_at":{_time(last_error_at)},"dead_lettered_at":{_time(dead_lettered_at)},'
        f'"blocks_key":{"true" if blocks_key else "false"}{_join(texts)}}}\n'
    ).encode()


def _join(texts: Sequence[str | None]) -> str:
    """Return the JSON columns as they are in a line."""
    headers, history, original, payload = texts
    text = (
        f"{_BEGIN['headers']}{headers}{_BEGIN['history']}{history or 'null'}"
        f"{_BEGIN['original']}{original or 'null'}{_BEGIN['payload']}{payload}"
    )
    # MariaDB keeps JSON as it was written. Outside of strings, a line break is a blank.
    return _without_line_breaks(text) if "\n" in text else text


def _time(text: str | None) -> str:
    return "null" if text is None else f'"{text[:10]}T{text[11:]}+00:00"'


def _without_line_breaks(text: str) -> str:
    return text.replace("\r\n", " ").replace("\n", " ")


def _encode_carefully(row: Row) -> bytes:
    values: dict[str, Any] = {}
    unreadable: dict[str, str] = {}
    for name, value in zip(NAMES, row, strict=True):
        try:
            values[name] = _read_column(name, value)
        except Exception:
            values[name] = _blank(name)
            raw = value if isinstance(value, bytes) else str(value).encode(errors="backslashreplace")
            unreadable[name] = base64.b64encode(raw).decode()
    texts = _join([values.pop(name) for name in JSON])
    if unreadable:
        values["unreadable"] = unreadable
    scalars = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
    return f"{scalars[:-1]}{texts}}}\n".encode()


def _read_column(name: str, value: Any) -> Any:
    if name in JSON:
        return _read_json(name, value)
    if name in TIMES:
        return None if value is None else read_time(value).isoformat()
    if name == "message_id":
        return read_uuid(value)
    if name == "blocks_key":
        return bool(value)
    if name in {"id", "attempts"}:
        return int(value)
    text = read_text(value)
    text.encode()
    return text


def _read_json(name: str, value: Any) -> str | None:
    if value is None and name in _OPTIONAL:
        return None
    text = read_text(value)
    # The relay sends it as it is, so nothing of it may be lost; it is only proved to be JSON.
    found, end = _EXACT.raw_decode(text.strip(" \t\r\n"))
    if end < len(text.strip(" \t\r\n")) or not isinstance(found, _TYPES.get(name, object)):
        raise ValueError(name)
    text.encode()
    return text


def _blank(name: str) -> Any:
    blanks = {
        "headers": "{}",
        "history": "null",
        "original": "null",
        "payload": "null",
        "message_id": str(uuid.UUID(int=0)),
        "attempts": 0,
    }
    return None if name in TIMES else blanks.get(name, "")


def decode(line: bytes) -> ArchivedMessage:
    """Read a line.

    Raises:
        InvalidLine: it is not a message.
    """
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
    """Return why a message cannot be written to the table again; blank if it can."""
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
