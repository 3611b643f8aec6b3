"""Check messages before they reach the database, because a database error would break the caller's transaction."""

import datetime
import json
import uuid

from django.db.models.expressions import Combinable, DatabaseDefault
from django.utils.timezone import is_naive

from django_outbox.conf import get_settings
from django_outbox.db.fields import partition_of
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.json_checks import Json, check_json, problem_of_characters
from django_outbox.exceptions import InvalidMessage
from django_outbox.messages import RESERVED_PREFIX, is_reserved
from django_outbox.models import EARLIEST, LATEST, MAX_NAME_LENGTH, OutboxMessage
from django_outbox.stores.base import Store

MAX_HEADERS_BYTES = 64 * 1024
"""Maximum bytes of a message's headers as JSON. AMQP sends them in one frame, of 128 KiB by default."""

MAX_DELAY = datetime.timedelta(days=3653)
"""Maximum delay: ten years."""

NEW_MESSAGE = {
    "processed_at": None,
    "failed_at": None,
    "attempts": 0,
    "error": "",
    "error_class": "",
    "first_error_at": None,
    "last_error_at": None,
    "dead_lettered_at": None,
    "history": None,
    "original": None,
}
"""The fields that record delivery attempts, with their values in a new message."""


def check_message(message: OutboxMessage, store: Store, source: str = "") -> Json:
    """Check the fields that the caller sets, and return the payload as JSON, with its size and that of the headers.

    A key that is an integer or a UUID is converted to text.

    Args:
        message: an unsaved message.
        store: the store of the database that it will be written to; the limits of that database apply.
        source: the JSON that the payload was read from, without NaN and infinite numbers, if it was.

    Raises:
        InvalidMessage: a field is invalid.
    """
    settings = get_settings()
    if not store.can_store_uuid(message.message_id):
        raise InvalidMessage(
            "message_id",
            f"{message.message_id} is of a version that the database does not always store; use version 7 or lower.",
        )
    check_name("type", message.type, store)
    if not message.type:
        raise InvalidMessage("type", "must not be blank. Pass the name of the event, such as 'order.created'.")
    check_name("topic", message.topic, store)
    message.key = _read_key(message.key)
    check_name("key", message.key, store)
    publisher: object = message.publisher
    if not isinstance(publisher, str) or publisher not in settings.publishers:
        known = ", ".join(sorted(settings.publishers))
        raise InvalidMessage("publisher", f"{_quoted(publisher)} is not in OUTBOX['PUBLISHERS']; configured: {known}.")
    check_name("publisher", publisher, store)
    limit = settings.max_payload_bytes
    # Encoded again, with spaces and without exponents, JSON becomes less than five times as long.
    payload = check_json("payload", message.payload, store, source if 5 * len(source) <= limit else "")
    if payload.size > limit:
        raise InvalidMessage(
            "payload",
            f"is {payload.size:,} bytes as JSON; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}. "
            "Send a reference to the data instead, or increase the limit.",
        )
    return Json(payload.text, payload.size + _check_headers(message.headers, store))


def check_unsaved(message: object) -> OutboxMessage:
    """Check that an object is a new message, without a value in any field that only the database and the relay set.

    Fields that `enqueue` would convert are converted in place.

    Raises:
        InvalidMessage: it is not an `OutboxMessage`, or not a new one.
    """
    if not isinstance(message, OutboxMessage):
        raise InvalidMessage("message", f"must be an OutboxMessage, not {_kind(message)}.")
    if message.pk is not None:
        raise InvalidMessage(
            "id", "must be None. The message is already saved, or its ID was set by hand: the database assigns it."
        )
    for name, initial in NEW_MESSAGE.items():
        if getattr(message, name) != initial:
            raise InvalidMessage(name, f"must be {initial!r}: only the relay sets this field.")
    message.message_id = read_message_id(message.message_id)
    message.key = _read_key(message.key)
    # An earlier call may have set them on the same instance.
    for name, default, chosen in (
        ("partition", 0, lambda: partition_of(message.key)),
        ("blocks_key", False, lambda: bool(message.key)),
    ):
        if getattr(message, name) != default and getattr(message, name) != chosen():
            raise InvalidMessage(name, "must not be set: it is derived from the key.")
    for name in ("occurred_at", "available_at"):
        time = getattr(message, name)
        if not isinstance(time, DatabaseDefault):
            setattr(message, name, _read_time(name, time))
    return message


def read_message_id(value: object) -> uuid.UUID:
    """Return a message ID as a UUID.

    Raises:
        InvalidMessage: it is not a valid UUID.
    """
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            pass
    raise InvalidMessage("message_id", f"{_quoted(value)} is not a valid UUID.")


def read_available_at(delay: object, available_at: object) -> datetime.datetime | Combinable:
    """Return the earliest time at which the message may be published, given one of `delay` and `available_at`.

    Raises:
        InvalidMessage: both are given, or the given one is invalid.
    """
    if delay is None:
        return _read_time("available_at", available_at)
    if available_at is not None:
        raise InvalidMessage("delay", "cannot be combined with available_at. Pass only one of them.")
    limit = f"it must be from 0 to {MAX_DELAY.days:,} days"
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            delay = datetime.timedelta(seconds=delay)
        except (OverflowError, ValueError):
            raise InvalidMessage("delay", f"is not a valid number of seconds; {limit}.") from None
    if not isinstance(delay, datetime.timedelta):
        raise InvalidMessage("delay", f"must be a number of seconds or a timedelta, not {_kind(delay)}.")
    if not datetime.timedelta(0) <= delay <= MAX_DELAY:
        raise InvalidMessage("delay", f"is {delay.total_seconds():,.10g} seconds; {limit}.")
    return DatabaseNow() + delay


def check_name(field: str, value: object, store: Store | None) -> None:
    """Check text for a column of `MAX_NAME_LENGTH`.

    Args:
        field: the field that an error names.
        value: the text.
        store: the store of the database that it will be written to; None to check what holds for every database.

    Raises:
        InvalidMessage: it cannot be stored.
    """
    if not isinstance(value, str):
        raise InvalidMessage(field, f"must be a string, not {_kind(value)}.")
    if value.isascii() and len(value) <= MAX_NAME_LENGTH and "\x00" not in value:
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, "contains a lone surrogate, which cannot be encoded as UTF-8.") from None
    if size > MAX_NAME_LENGTH:
        raise InvalidMessage(field, f"is {size:,} bytes long in UTF-8; the limit is {MAX_NAME_LENGTH}.")
    if "\x00" in value:
        raise InvalidMessage(field, "contains a NUL character, which databases cannot store.")
    if store is not None and (problem := problem_of_characters(value, store)):
        raise InvalidMessage(field, problem)


def _read_time(field: str, value: object) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        raise InvalidMessage(
            field, f"must be an aware datetime, not {_kind(value)}. For the current time, leave it out."
        )
    if is_naive(value):
        raise InvalidMessage(
            field, "must be an aware datetime. django.utils.timezone.now() returns one, and make_aware() converts one."
        )
    try:
        time = value.astimezone(datetime.timezone.utc)
    except OverflowError:
        time = None
    if time is None or not EARLIEST <= time < LATEST:
        raise InvalidMessage(field, f"is {value}; it must not be before {EARLIEST}, and must be before {LATEST}.")
    return time


def _read_key(value: object) -> str:
    """Return a key as text.

    Raises:
        InvalidMessage: it is not a string, an integer or a UUID.
    """
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        if abs(value) >= 10**MAX_NAME_LENGTH:
            raise InvalidMessage(
                "key", f"is an integer with more than {MAX_NAME_LENGTH} digits; the limit is {MAX_NAME_LENGTH} bytes."
            )
        return str(int(value))
    if not isinstance(value, str):
        raise InvalidMessage("key", f"must be a string, an integer or a UUID, not {_kind(value)}.")
    return value


def _check_headers(headers: object, store: Store) -> int:
    if not isinstance(headers, dict):
        raise InvalidMessage("headers", f"must be a dict, not {_kind(headers)}.")
    if not headers:
        return len("{}")
    for name in headers:
        if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME_LENGTH:
            raise InvalidMessage(
                "headers", f"the name {_quoted(name)} must be a string of 1 to {MAX_NAME_LENGTH} bytes."
            )
        if is_reserved(name):
            raise InvalidMessage(
                "headers",
                f"the name begins with {RESERVED_PREFIX!r}, which is reserved for the outbox's own headers. Rename the "
                "header; if you pass on headers from outside, leave it out.",
                f"[{json.dumps(name)}]",
            )
    size = check_json("headers", headers, store).size
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(
            "headers", f"are {size:,} bytes as JSON; the limit is {MAX_HEADERS_BYTES:,}. Move data to the payload."
        )
    return size


def _kind(value: object) -> str:
    return type(value).__name__


def _quoted(value: object) -> str:
    # Other values may have no text: Python refuses to convert a very long integer.
    return ascii(value[:100]) if isinstance(value, str) else f"a value of type {_kind(value)}"
