"""Turn a broker's message into an `OutboxMessage`, or state why that is not possible."""

import base64
import json
import uuid
from collections.abc import Mapping
from typing import Any

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.validation import check_message
from django_outbox.error_text import describe, one_line
from django_outbox.exceptions import InvalidMessage
from django_outbox.inbox.base import Consumer, Incoming
from django_outbox.inbox.ids import derive_uuid, read_uuid
from django_outbox.messages import MAX_ERROR_LENGTH
from django_outbox.models import EARLIEST, LATEST, OutboxMessage
from django_outbox.stores import Store

INVALID_TYPE = "inbox.invalid"
"""The type of a failed message that stands for one that could not be stored as it came, and its error class."""

PLAIN_ENCODINGS = ("", "utf-8", "utf8", "identity")


class Refused(ValueError):
    """A message cannot be stored; the text is the reason, without any of its content."""


def id_of_incoming(incoming: Incoming, consumer: Consumer) -> uuid.UUID:
    """Return the ID of a message: the sender's if it is a UUID, otherwise one that is derived from what identifies it.

    A message that comes again has the same ID.
    """
    if incoming.message_id:
        found = read_uuid(incoming.message_id)
        return found or derive_uuid(_bytes(consumer.alias), b"id", _bytes(incoming.message_id))
    name = consumer.id_source.removeprefix("header:")
    if consumer.id_source != "body" and (value := incoming.headers.get(name)) is not None:
        text = _text(value)
        return read_uuid(text) or derive_uuid(_bytes(consumer.alias), b"header", _bytes(text))
    sent_at = "" if incoming.sent_at is None else incoming.sent_at.isoformat()
    parts = (incoming.type, incoming.topic, incoming.key, sent_at)
    return derive_uuid(_bytes(consumer.alias), b"body", *map(_bytes, parts), incoming.body)


def to_message(incoming: Incoming, consumer: Consumer, store: Store) -> OutboxMessage:
    """Return an unsaved message, which the database can store.

    Raises:
        Refused: that is not possible.
    """
    message = OutboxMessage(
        message_id=id_of_incoming(incoming, consumer),
        type=incoming.type,
        topic="" if incoming.topic == incoming.type else incoming.topic,
        key=incoming.key,
        payload=_read_payload(incoming),
        headers=plain_headers(incoming.headers),
        publisher=consumer.publisher,
    )
    if incoming.sent_at is not None and EARLIEST <= incoming.sent_at < LATEST:
        message.occurred_at = incoming.sent_at
    try:
        check_message(message, store)
    except InvalidMessage as error:
        raise Refused(one_line(error)) from error
    except Exception as error:
        # No content of a message may stop the consumer.
        raise Refused(describe(error)) from error
    return message


def to_failed_message(incoming: Incoming, reason: str, consumer: Consumer, store: Store) -> OutboxMessage:
    """Return an unsaved message that has failed, whose payload describes a message that was refused.

    Raises:
        Refused: it is too large, too.
    """
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
        "headers": repr(dict(incoming.headers))[:10_000],
    }
    # Text of every kind must fit into every database.
    payload = {name: store.storable(text) for name, text in payload.items()}
    message = OutboxMessage(
        message_id=id_of_incoming(incoming, consumer),
        type=INVALID_TYPE,
        payload=payload,
        headers={},
        publisher=consumer.publisher,
        error=store.storable(reason)[:MAX_ERROR_LENGTH],
        error_class=INVALID_TYPE,
    )
    try:
        check_message(message, store)
    except Exception as error:
        raise Refused(f"{reason} Nor can it be stored as a failed message: {one_line(error)}") from error
    message.available_at = None
    message.failed_at = message.first_error_at = message.last_error_at = DatabaseNow()
    return message


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


def _read_payload(incoming: Incoming) -> Any:
    if incoming.encoding.lower() not in PLAIN_ENCODINGS:
        raise Refused(f"its content encoding is {one_line(incoming.encoding, 50)}; the body must be JSON in UTF-8.")
    limit = get_settings().max_payload_bytes
    if len(incoming.body) > limit:
        raise Refused(f"its body has {len(incoming.body):,} bytes; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}.")
    try:
        return json.loads(incoming.body)
    except json.JSONDecodeError as error:
        raise Refused(f"its body is not JSON: {error.msg} at byte {error.pos:,}.") from None
    except UnicodeDecodeError:
        raise Refused("its body is not JSON: it is not encoded in UTF-8.") from None
    except RecursionError:
        raise Refused("its body is JSON that is nested too deeply.") from None
    except ValueError as error:
        # Python reads no integer of more than 4,300 digits.
        raise Refused(f"its body is not readable as JSON: {one_line(error, 200)}") from None


def _text(value: object) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
