"""What a message may be: everything that can be wrong with one is found here, before the database.

An error of the database would break the caller's transaction.
"""

import datetime
import decimal
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models.expressions import Combinable, DatabaseDefault
from django.utils.timezone import is_naive

from django_outbox.clock import DatabaseNow
from django_outbox.conf import get_settings
from django_outbox.exceptions import InvalidMessage
from django_outbox.models import MAX_NAME_LENGTH, OutboxMessage

MAX_HEADERS_BYTES = 64 * 1024
"""The most that a message's headers may take as JSON: AMQP sends them in one frame, of 128 KiB by default."""

MAX_INTEGER_DIGITS = 308
"""How long an integer in JSON may be: MySQL stores none that passes a double."""

MAX_DELAY = datetime.timedelta(days=3653)
"""How far ahead a delay may reach."""


def check_message(message: OutboxMessage, max_json_depth: int) -> int:
    """Check what the caller chose, and return how many bytes the payload and the headers take as JSON.

    Args:
        message: an unsaved message.
        max_json_depth: how deep the database lets JSON be nested.

    Raises:
        InvalidMessage: a field is wrong; it names the field and the limit.
    """
    settings = get_settings()
    _check_name("type", message.type)
    if not message.type:
        raise InvalidMessage("type", "must not be blank: it says what happened, order.created for example.")
    _check_name("topic", message.topic)
    _check_name("key", message.key)
    publisher: object = message.publisher
    if not isinstance(publisher, str) or publisher not in settings.publishers:
        known = ", ".join(sorted(settings.publishers))
        raise InvalidMessage("publisher", f"{_shown(publisher)} is not in OUTBOX['PUBLISHERS']; configured: {known}.")
    size = _check_json("payload", message.payload, max_json_depth)
    limit = settings.max_payload_bytes
    if size > limit:
        raise InvalidMessage(
            "payload",
            f"is {size:,} bytes as JSON; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}. "
            "Send a reference to the data instead, or raise it.",
        )
    return size + _check_headers(message.headers, max_json_depth)


def check_unsaved(message: object) -> OutboxMessage:
    """Return the message if it is new: nothing is set that only the database and the relay may set.

    Raises:
        InvalidMessage: it is no message, or not a new one.
    """
    if not isinstance(message, OutboxMessage):
        raise InvalidMessage("message", f"must be an OutboxMessage, not {_kind(message)}.")
    if message.pk is not None:
        raise InvalidMessage("id", "must be empty: the message has been saved already, or the database numbers it.")
    for name, blank in (("processed_at", None), ("failed_at", None), ("attempts", 0), ("error", "")):
        if getattr(message, name) != blank:
            raise InvalidMessage(name, f"must be {blank!r}: a new message is pending and was never tried.")
    message.message_id = read_message_id(message.message_id)
    for name in ("occurred_at", "available_at"):
        time = getattr(message, name)
        if not isinstance(time, DatabaseDefault):
            setattr(message, name, _read_time(name, time))
    return message


def read_message_id(value: object) -> uuid.UUID:
    """Return the message's identity, which may be given as text.

    Raises:
        InvalidMessage: it is no UUID.
    """
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            pass
    raise InvalidMessage("message_id", f"{_shown(value)} is no UUID.")


def read_available_at(delay: object, available_at: object) -> datetime.datetime | Combinable:
    """Return from when on the message may be published; one of the two is not None.

    Raises:
        InvalidMessage: both are given, or it is no time.
    """
    if delay is None:
        return _read_time("available_at", available_at)
    if available_at is not None:
        raise InvalidMessage("delay", "give either delay or available_at, not both.")
    limit = f"it must be from 0 to {MAX_DELAY.days} days"
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        try:
            delay = datetime.timedelta(seconds=delay)
        except (OverflowError, ValueError):
            raise InvalidMessage("delay", f"is no number of seconds that can be counted; {limit}.") from None
    if not isinstance(delay, datetime.timedelta):
        raise InvalidMessage("delay", f"must be seconds or a timedelta, not {_kind(delay)}.")
    if not datetime.timedelta(0) <= delay <= MAX_DELAY:
        raise InvalidMessage("delay", f"is {delay}; {limit}.")
    return DatabaseNow() + delay


def _read_time(field: str, value: object) -> datetime.datetime:
    if not isinstance(value, datetime.datetime):
        raise InvalidMessage(field, f"must be an aware datetime, not {_kind(value)}; leave it out for now.")
    if is_naive(value):
        raise InvalidMessage(field, "must be aware: give it a time zone, as timezone.now() has.")
    try:
        return value.astimezone(datetime.timezone.utc)
    except OverflowError:
        raise InvalidMessage(field, "is outside the years 1 to 9999 in UTC.") from None


def _check_name(field: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidMessage(field, f"must be a string, not {_kind(value)}.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, "has a lone surrogate, which is no text in UTF-8.") from None
    if size > MAX_NAME_LENGTH:
        raise InvalidMessage(field, f"is {size:,} bytes long in UTF-8; the limit is {MAX_NAME_LENGTH}.")
    if "\x00" in value:
        raise InvalidMessage(field, "has a NUL character, which databases cannot store.")


def _check_headers(headers: object, max_json_depth: int) -> int:
    if not isinstance(headers, dict):
        raise InvalidMessage("headers", f"must be a dict, not {_kind(headers)}.")
    if not headers:
        return len("{}")
    for name in headers:
        if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= MAX_NAME_LENGTH:
            raise InvalidMessage(
                "headers", f"the name {_shown(name)} must be a string of 1 to {MAX_NAME_LENGTH} bytes."
            )
    size = _check_json("headers", headers, max_json_depth)
    if size > MAX_HEADERS_BYTES:
        raise InvalidMessage(
            "headers", f"are {size:,} bytes as JSON; the limit is {MAX_HEADERS_BYTES:,}. Put data into the payload."
        )
    return size


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        if isinstance(o, decimal.Decimal) and not o.is_finite():
            raise ValueError(f"Decimal('{o}') is not a number")
        return super().default(o)


# An escaped NUL: an odd number of backslashes before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_LONG_NUMBER = re.compile(rf"[0-9]{{{MAX_INTEGER_DIGITS + 1}}}")


def _check_json(field: str, value: Any, max_depth: int) -> int:
    try:
        text = json.dumps(value, cls=_Encoder, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, "has a string with a lone surrogate, which is no text in UTF-8.") from None
    except RecursionError:
        raise InvalidMessage(field, f"is nested too deeply; the limit is {max_depth} levels.") from None
    except (TypeError, ValueError) as error:
        raise InvalidMessage(
            field, f"is not JSON: {error}. Use dicts, lists, strings, numbers, booleans, None, and dates or Decimals."
        ) from error
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidMessage(field, "has a string with a NUL character, which PostgreSQL cannot store as JSON.")
    if text.count("[") + text.count("{") > max_depth and _depth(value) > max_depth:
        raise InvalidMessage(field, f"is nested too deeply for this database; the limit is {max_depth} levels.")
    if _LONG_NUMBER.search(text) and _has_long_integer(value):
        raise InvalidMessage(field, f"has an integer of more than {MAX_INTEGER_DIGITS} digits; send it as a string.")
    return size


def _levels(value: Any) -> Iterator[list[Any]]:
    level = [value]
    while level:
        yield level
        level = [child for node in level for child in _children(node)]


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, dict):
        return node.values()
    return node if isinstance(node, list | tuple) else ()


def _depth(value: Any) -> int:
    return sum(any(isinstance(node, dict | list | tuple) for node in level) for level in _levels(value))


def _has_long_integer(value: Any) -> bool:
    return any(
        isinstance(node, int) and abs(node) >= 10**MAX_INTEGER_DIGITS for level in _levels(value) for node in level
    )


def _kind(value: object) -> str:
    return type(value).__name__


def _shown(value: object) -> str:
    # Not every value can be shown: Python refuses to write out a very long integer.
    return ascii(value[:100]) if isinstance(value, str) else f"of type {_kind(value)}"
