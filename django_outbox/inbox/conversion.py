"""Turn a broker's message into one of the outbox, or state why that is not possible."""

import base64
import datetime
import json
import math
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import TextField, Value

from django_outbox.brokers.consumer import Consumer, Incoming
from django_outbox.brokers.ids import derive_uuid, read_uuid
from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.validation import check_message
from django_outbox.enqueueing.writing import new_row
from django_outbox.exceptions import InvalidMessage
from django_outbox.messages import DJANGO_TASK, MAX_ERROR_LENGTH, is_reserved
from django_outbox.models import EARLIEST, LATEST, OutboxMessage
from django_outbox.stores import NewRow, Store
from django_outbox.text import describe, one_line

INVALID_TYPE = "inbox.invalid"
"""The type of a failed message that stands for one that could not be stored as it came, and its error class."""

MAX_HEADERS_LENGTH = 10_000
"""Maximum characters of the headers in such a message."""

PLAIN_ENCODINGS = ("", "utf-8", "utf8", "identity")


@dataclass(slots=True)
class Content:
    """The fields of a message to store. Unlike a model's instance, it costs next to nothing to make.

    `text` is the JSON of the payload as it came, because decoding shortens numbers; blank if there is none.
    `occurred_at` is None for now. A blank `error` means that the message is pending, otherwise it has failed. `size` is
    about the number of bytes that it adds to an INSERT.
    """

    message_id: uuid.UUID
    type: str
    publisher: str
    payload: Any
    text: str = ""
    topic: str = ""
    key: str = ""
    headers: dict[str, Any] = field(default_factory=dict)
    occurred_at: datetime.datetime | None = None
    error: str = ""
    size: int = 0

    def check(self, store: Store) -> None:
        """Raise InvalidMessage if the database cannot store it."""
        check_message(cast(OutboxMessage, self), store, self.text)

    def to_model(self) -> OutboxMessage:
        message = OutboxMessage(
            message_id=self.message_id,
            type=self.type,
            topic=self.topic,
            key=self.key,
            payload=Value(self.text, TextField()) if self.text else self.payload,
            headers=self.headers,
            publisher=self.publisher,
        )
        if self.occurred_at is not None:
            message.occurred_at = self.occurred_at
        if self.error:
            message.error = self.error
            message.error_class = INVALID_TYPE
            message.available_at = None
            message.failed_at = message.first_error_at = message.last_error_at = DatabaseNow()
        return message

    def to_row(self, store: Store) -> NewRow:
        """Return it as `Store.insert_rows` takes it."""
        return new_row(cast(OutboxMessage, self), self.text or encode(self.payload), store)


def encode(value: Any) -> str:
    """Return a value as JSON, as Django's own field would store it."""
    return json.dumps(value, cls=DjangoJSONEncoder)


class Unstorable(ValueError):
    """A message cannot be stored; the text is the reason, without any of its content."""


def id_of_incoming(incoming: Incoming, consumer: Consumer) -> uuid.UUID:
    """Return the ID of a message: what `id_source` names if it is a UUID, otherwise one that is derived from it.

    A message that comes again has the same ID.
    """
    source, _, name = consumer.id_source.partition(":")
    if source == "header" and (value := incoming.headers.get(name)) is not None:
        text = _text(value)
        return read_uuid(text) or derive_uuid(_bytes(consumer.alias), b"header", _bytes(text))
    if source in ("message_id", "header") and incoming.message_id:
        found = read_uuid(incoming.message_id)
        return found or derive_uuid(_bytes(consumer.alias), b"id", _bytes(incoming.message_id))
    # A header that is missing must not make different messages equal.
    position = "" if source == "body" else incoming.position
    sent_at = "" if incoming.sent_at is None else incoming.sent_at.isoformat()
    # With the content, because positions begin again in a stream that was deleted and created again.
    parts = (position, incoming.type, incoming.topic, incoming.key, sent_at)
    return derive_uuid(_bytes(consumer.alias), b"body", *map(_bytes, parts), incoming.body)


def read_content(incoming: Incoming, consumer: Consumer, store: Store) -> Content:
    """Return the fields of a message that the database can store; if that is not possible, raise Unstorable."""
    if incoming.problem:
        raise Unstorable(incoming.problem)
    if incoming.type == DJANGO_TASK:
        raise Unstorable(f"its type {DJANGO_TASK!r} is reserved for the tasks of this project.")
    text, payload = _read_payload(incoming)
    content = Content(
        message_id=id_of_incoming(incoming, consumer),
        type=incoming.type,
        text=text,
        topic="" if incoming.topic == incoming.type else incoming.topic,
        key=incoming.key,
        payload=payload,
        headers=_own_headers(incoming.headers) if incoming.headers else {},
        publisher=consumer.publisher,
        size=len(incoming.body),
    )
    if incoming.sent_at is not None and EARLIEST <= incoming.sent_at < LATEST:
        content.occurred_at = incoming.sent_at
    try:
        content.check(store)
    except InvalidMessage as error:
        raise Unstorable(one_line(error)) from error
    except Exception as error:
        # No content of a message may stop the consumer.
        raise Unstorable(describe(error)) from error
    return content


def describe_unstorable(incoming: Incoming, reason: str, consumer: Consumer, store: Store) -> Content:
    """Return the fields of a failed message. Its payload describes the message that could not be stored."""
    try:
        body = incoming.body.decode()
    except UnicodeDecodeError:
        body = ""
    is_text = store.storable(body) == body and bool(body)
    payload = {
        "body": body if is_text else base64.b64encode(incoming.body).decode(),
        "body_encoding": "utf-8" if is_text else "base64",
        "content_encoding": incoming.encoding,
        "message_id": incoming.message_id,
        "type": incoming.type,
        "topic": incoming.topic,
        "key": incoming.key,
        "headers": repr(dict(incoming.headers))[:MAX_HEADERS_LENGTH],
    }
    content = Content(
        message_id=id_of_incoming(incoming, consumer),
        type=INVALID_TYPE,
        # Text of every kind must fit into every database.
        payload={name: store.storable(text) for name, text in payload.items()},
        publisher=consumer.publisher,
        error=store.storable(reason)[:MAX_ERROR_LENGTH],
        size=len(payload["body"]),
    )
    try:
        content.check(store)
    except Exception as error:
        raise Unstorable(f"{reason} Nor can it be stored as a failed message: {one_line(error)}") from error
    return content


def _own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sender's headers, except the names that only this project's outbox may set."""
    return {name: value for name, value in plain_headers(headers).items() if not is_reserved(name)}


def plain_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Return headers as JSON has them; bytes become text."""
    return {_text(name): _plain(value) for name, value in headers.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, dict):
        return plain_headers(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value


def _read_payload(incoming: Incoming) -> tuple[str, Any]:
    """Return the body as text, and what it is as JSON."""
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


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
