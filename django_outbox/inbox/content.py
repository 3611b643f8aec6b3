"""Turn a broker's messages into messages to insert."""

import base64
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from django_outbox.brokers.consumer import Incoming, StoringOptions
from django_outbox.brokers.ids import derive_uuid, read_uuid
from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.enqueueing.validation import check_message
from django_outbox.messages import DJANGO_TASK, INVALID_TYPE, MAX_ERROR_LENGTH, is_reserved
from django_outbox.models import EARLIEST, LATEST, OutboxMessage
from django_outbox.stores.dialect import Dialect
from django_outbox.utils.text import one_line

MAX_HEADERS_LENGTH = 10_000
"""Maximum characters of the headers in the payload of a failed message."""

PLAIN_ENCODINGS = ("", "utf-8", "utf8", "identity")

BYTES = (bytes, bytearray, memoryview)
"""The types of values that are bytes."""


class Unstorable(ValueError):
    """A message cannot be stored; the text is the reason, without any of its content."""


def id_of_incoming(incoming: Incoming, options: StoringOptions) -> uuid.UUID:
    """Return the ID of a message: what `id_source` names if it is a UUID, otherwise one that is derived from it.

    A redelivered message has the same ID.
    """
    source, _, name = options.id_source.partition(":")
    value = incoming.headers.get(name) if source == "header" else None
    # A list or a table identifies nothing, and may be nested too deeply to have a text.
    if value is not None and not isinstance(value, list | dict):
        text = text_of(value)
        return read_uuid(text) or derive_uuid(_bytes(options.alias), b"header", _bytes(text))
    if source in ("message_id", "header") and incoming.message_id:
        found = read_uuid(incoming.message_id)
        return found or derive_uuid(_bytes(options.alias), b"id", _bytes(incoming.message_id))
    # A header that is missing must not make different messages equal.
    position = "" if source == "body" else incoming.position
    sent_at = "" if incoming.sent_at is None else incoming.sent_at.isoformat()
    # With the content, because positions begin again in a stream that was deleted and created again.
    parts = (position, incoming.type, incoming.topic, incoming.key, sent_at)
    return derive_uuid(_bytes(options.alias), b"body", *map(_bytes, parts), incoming.body)


def read_incoming(incoming: Incoming, options: StoringOptions, dialect: Dialect) -> NewMessage:
    """Return a message that the database can store.

    Raises:
        Unstorable, InvalidMessage: that is not possible. The text is the reason, without any of the content.
        Exception: it cannot be read. The text may quote the content.
    """
    if incoming.problem:
        raise Unstorable(incoming.problem)
    if incoming.type == DJANGO_TASK:
        raise Unstorable(f"its type {DJANGO_TASK!r} is reserved for the tasks of this project.")
    text, payload = _read_payload(incoming)
    message = NewMessage(
        message_id=id_of_incoming(incoming, options),
        type=incoming.type,
        publisher=options.publisher,
        payload=payload,
        text=text,
        topic="" if incoming.topic == incoming.type else incoming.topic,
        key=incoming.key,
        # Only this project's outbox may set reserved names.
        headers={name: value for name, value in plain_headers(incoming.headers).items() if not is_reserved(name)}
        if incoming.headers
        else {},
    )
    if incoming.sent_at is not None and EARLIEST <= incoming.sent_at < LATEST:
        message.occurred_at = incoming.sent_at
    check_message(message, dialect, text)
    return message


def describe_unstorable(incoming: Incoming, reason: str, options: StoringOptions, dialect: Dialect) -> OutboxMessage:
    """Return a failed message. Its payload describes the message that could not be stored."""
    try:
        body = incoming.body.decode()
    except UnicodeDecodeError:
        body = ""
    is_text = dialect.storable(body) == body and bool(body)
    payload = {
        "body": body if is_text else base64.b64encode(incoming.body).decode(),
        "body_encoding": "utf-8" if is_text else "base64",
        "content_encoding": incoming.encoding,
        "message_id": incoming.message_id,
        "type": incoming.type,
        "topic": incoming.topic,
        "key": incoming.key,
        # Never raises, however deeply they are nested.
        "headers": one_line(dict(incoming.headers), MAX_HEADERS_LENGTH),
    }
    message = OutboxMessage(
        message_id=id_of_incoming(incoming, options),
        type=INVALID_TYPE,
        # Text of every kind must fit into every database.
        payload={name: dialect.storable(text) for name, text in payload.items()},
        publisher=options.publisher,
        error=dialect.storable(reason)[:MAX_ERROR_LENGTH],
        error_class=INVALID_TYPE,
        available_at=None,
    )
    message.failed_at = message.first_error_at = message.last_error_at = DatabaseNow()
    check_message(message, dialect)
    return message


def plain_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers as JSON has them; bytes become text."""
    return {text_of(name): _plain(value) for name, value in headers.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, BYTES):
        return text_of(value)
    if isinstance(value, dict):
        return plain_headers(value)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def _read_payload(incoming: Incoming) -> tuple[str, Any]:
    if incoming.encoding.lower() not in PLAIN_ENCODINGS:
        raise Unstorable(f"its content encoding is {one_line(incoming.encoding, 50)}; the body must be JSON in UTF-8.")
    limit = get_settings().max_payload_bytes
    if len(incoming.body) > limit:
        raise Unstorable(f"its body has {len(incoming.body):,} bytes; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}.")
    try:
        body = incoming.body
        encoding = "ascii" if body.isascii() and b"\0" not in body else json.detect_encoding(body)
        text = body.decode(encoding, "surrogatepass")
        return text, _decode(text)
    except json.JSONDecodeError as error:
        raise Unstorable(f"its body is not JSON: {error.msg} at byte {error.pos:,}.") from None
    except UnicodeDecodeError:
        raise Unstorable("its body is not JSON: it is not encoded in UTF-8.") from None
    except RecursionError:
        raise Unstorable("its body is JSON that is nested too deeply.") from None
    except ValueError as error:
        # Python reads no integer of more than 4,300 digits.
        raise Unstorable(f"its body is not readable as JSON: {one_line(error, 200)}") from None


def _read_float(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError("it has a number that is too large.")
    return number


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON.")


_decoder: Any = json.JSONDecoder(parse_float=_read_float, parse_constant=_refuse_constant)


def _decode(text: str) -> Any:
    # Its `decode` takes a third longer, because it first looks for spaces around the value.
    try:
        value, end = _decoder.scan_once(text, 0)
    except StopIteration:
        end = -1
    return value if end == len(text) else _decoder.decode(text)


def text_of(value: object) -> str:
    return bytes(value).decode("utf-8", "backslashreplace") if isinstance(value, BYTES) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
