"""Check messages before they reach the database, because a database error would break the caller's transaction."""

import datetime
import decimal
import json
import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models.expressions import Combinable, DatabaseDefault
from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from django.utils.timezone import is_naive

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.exceptions import InvalidMessage
from django_outbox.messages import MAX_HEADERS_DEPTH, RESERVED_PREFIX, is_reserved
from django_outbox.models import EARLIEST, LATEST, MAX_NAME_LENGTH, OutboxMessage
from django_outbox.retry import is_number
from django_outbox.stores.dialect import Dialect
from django_outbox.utils.text import shorten

MAX_HEADERS_BYTES = 64 * 1024
"""Maximum bytes of a message's headers as JSON. AMQP sends them in one frame, of 128 KiB by default."""

MAX_DELAY = datetime.timedelta(days=3653)
"""Maximum delay: ten years."""

MAX_INTEGER_DIGITS = 308
"""Maximum digits of an integer in JSON, on every database: a longer one exceeds the range of a double."""

MAX_PATH_LENGTH = 200
"""Maximum characters of a path in an error."""

MAX_REASON_LENGTH = 150
"""Maximum characters of the encoder's own message in an error."""


class Json(NamedTuple):
    """A value as JSON, and its size in bytes."""

    text: str
    size: int


def check_message(message: OutboxMessage | NewMessage, dialect: Dialect, source: str = "") -> Json:
    """Check the fields that the caller sets; return the payload as JSON, and the size of payload and headers.

    A key that is an integer or a UUID is converted to text. `source` is as in `check_json`.
    """
    settings = get_settings()
    if not dialect.can_store_uuid(message.message_id):
        raise InvalidMessage(
            "message_id",
            f"{message.message_id} is of a version that the database does not always store; use version 7 or lower.",
        )
    check_name("type", message.type, dialect)
    if not message.type:
        raise InvalidMessage("type", "must not be blank. Pass the name of the event, such as 'order.created'.")
    check_name("topic", message.topic, dialect)
    message.key = _read_key(message.key)
    check_name("key", message.key, dialect)
    publisher: object = message.publisher
    if not isinstance(publisher, str) or publisher not in settings.publishers:
        known = ", ".join(sorted(settings.publishers))
        raise InvalidMessage("publisher", f"{_quoted(publisher)} is not in OUTBOX['PUBLISHERS']; configured: {known}.")
    check_name("publisher", publisher, dialect)
    limit = settings.max_payload_bytes
    # Encoded again, with spaces and without exponents, JSON becomes less than five times as long.
    payload = check_json("payload", message.payload, dialect, source if 5 * len(source) <= limit else "")
    if payload.size > limit:
        raise InvalidMessage(
            "payload",
            f"is {payload.size:,} bytes as JSON; OUTBOX['MAX_PAYLOAD_BYTES'] is {limit:,}. "
            "Send a reference to the data instead, or increase the limit.",
        )
    return Json(payload.text, payload.size + _check_headers(message.headers, dialect))


def check_unsaved(message: object) -> OutboxMessage:
    """Check that an object is a new message, and convert the fields that `enqueue` would convert, in place.

    Fields that only the relay sets, and those that are derived from the key, are not written, whatever they are.
    """
    if not isinstance(message, OutboxMessage):
        raise InvalidMessage("message", f"must be an OutboxMessage, not {_kind(message)}.")
    if message.pk is not None:
        raise InvalidMessage(
            "id", "must be None. The message is already saved, or its ID was set by hand: the database assigns it."
        )
    message.message_id = read_message_id(message.message_id)
    message.key = _read_key(message.key)
    for name in ("occurred_at", "available_at"):
        time = getattr(message, name)
        if not isinstance(time, DatabaseDefault):
            setattr(message, name, _read_time(name, time))
    return message


def read_message_id(value: object) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, str):
        try:
            return uuid.UUID(value)
        except ValueError:
            pass
    raise InvalidMessage("message_id", f"{_quoted(value)} is not a valid UUID.")


def read_available_at(delay: object, available_at: object) -> datetime.datetime | Combinable:
    if delay is None:
        return _read_time("available_at", available_at)
    if available_at is not None:
        raise InvalidMessage("delay", "cannot be combined with available_at. Pass only one of them.")
    limit = f"it must be from 0 to {MAX_DELAY.days:,} days"
    if is_number(delay):
        try:
            delay = datetime.timedelta(seconds=delay)
        except (OverflowError, ValueError):
            raise InvalidMessage("delay", f"is not a valid number of seconds; {limit}.") from None
    if not isinstance(delay, datetime.timedelta):
        raise InvalidMessage("delay", f"must be a number of seconds or a timedelta, not {_kind(delay)}.")
    if not datetime.timedelta(0) <= delay <= MAX_DELAY:
        raise InvalidMessage("delay", f"is {delay.total_seconds():,.10g} seconds; {limit}.")
    return DatabaseNow() + delay


# Line breaks, escape sequences and the like: Unicode's category Cc, and its line and paragraph separators.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def check_name(field: str, value: object, dialect: Dialect | None) -> None:
    """Check text for a column of `MAX_NAME_LENGTH`, without a dialect for every database alike.

    Only a key may have control characters.
    """
    if not isinstance(value, str):
        raise InvalidMessage(field, f"must be a string, not {_kind(value)}.")
    if value.isascii() and len(value) <= MAX_NAME_LENGTH and value.isprintable():
        return
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidMessage(field, "contains a lone surrogate, which cannot be encoded as UTF-8.") from None
    if size > MAX_NAME_LENGTH:
        raise InvalidMessage(field, f"is {size:,} bytes long in UTF-8; the limit is {MAX_NAME_LENGTH}.")
    if "\x00" in value:
        raise InvalidMessage(field, "contains a NUL character, which databases cannot store.")
    if field != "key" and (found := _CONTROL.search(value)):
        raise InvalidMessage(
            field,
            f"contains the control character U+{ord(found[0]):04X}. Remove it: brokers, logs and terminals treat such "
            "characters differently.",
        )
    if dialect is not None and (problem := problem_of_characters(value, dialect)):
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


def _check_headers(headers: object, dialect: Dialect) -> int:
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
    text, size = check_json("headers", headers, dialect)
    if text.count("[") + text.count("{") > MAX_HEADERS_DEPTH:
        for node in _nodes(headers):
            if node.depth > MAX_HEADERS_DEPTH and isinstance(node.value, dict | list | tuple):
                problem = f"is nested too deeply; the limit of headers is {MAX_HEADERS_DEPTH} levels."
                raise InvalidMessage("headers", problem, node.path)
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


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        if isinstance(o, decimal.Decimal) and not o.is_finite():
            raise ValueError(f"Decimal('{o}') is not a finite number")
        if isinstance(o, datetime.datetime) and is_naive(o):
            raise ValueError("it is a naive datetime, which would arrive without a time zone")
        return super().default(o)


# Made once: `json.dumps` makes one for each value, which costs a quarter of the encoding of a small payload.
_encode = _Encoder(allow_nan=False, ensure_ascii=False).encode

# An escaped NUL: an odd number of backslashes before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

# More digits than any 64-bit integer has: 20, or 19 after a minus. It may also match within a string. It begins with a
# digit, because a search for one character is quick.
_LONG_NUMBER = re.compile(r"[0-9](?:[0-9]{19}|(?<=-[0-9])[0-9]{18})")

# A key that was perhaps no string. The search for its end is quicker, because few strings have such an end.
_CONVERTED_KEY = re.compile(r'"(?:-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|true|false|null)": ')
_CONVERTED_KEY_END = re.compile('": (?:(?<=[0-9]": )|(?<="true": )|(?<="false": )|(?<="null": ))')

_SEVERAL_VALUES = {MultiValueDict, QueryDict}


def check_json(field: str, value: Any, dialect: Dialect, source: str = "") -> Json:
    """Return a value as JSON.

    `source` is the JSON that it was read from, without NaN and infinite numbers. It is returned if it proves the value
    valid, because encoding the value costs more.
    """
    # An escape may stand for a character that cannot be stored.
    if source.isascii() and source and "\\u" not in source and not _needs_closer_look(source, len(source), dialect):
        return Json(source, len(source))
    if isinstance(value, dict) and not _SEVERAL_VALUES.isdisjoint(map(type, (value, *value.values()))):
        _refuse_first_mistake(field, value, dialect)
    try:
        text = _encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        _refuse_first_mistake(field, value, dialect)
        raise InvalidMessage(field, _not_json(error)) from error
    if _needs_closer_look(text, size, dialect):
        _refuse_first_mistake(field, value, dialect)
    return Json(text, size)


def _needs_closer_look(text: str, size: int, dialect: Dialect) -> bool:
    """Return whether the value must be checked piece by piece, because its text alone does not prove it valid."""
    return (
        "\\u0000" in text
        or text.count("[") + text.count("{") > dialect.max_json_depth
        or size > (dialect.max_json_key_bytes or size)
        or _LONG_NUMBER.search(text) is not None
        or (_CONVERTED_KEY_END.search(text) is not None and _CONVERTED_KEY.search(text) is not None)
        or not dialect.can_store(text)
    )


class _Node(NamedTuple):
    """A value within a value: its container, its key or index in it, and its depth."""

    parent: "_Node | None"
    name: Any
    value: Any
    depth: int

    @property
    def path(self) -> str:
        names: list[str] = []
        node = self
        while node.parent is not None:
            names.append(f"[{_name(node.name)}]")
            node = node.parent
        return shorten("".join(reversed(names)), MAX_PATH_LENGTH)


def _name(name: Any) -> str:
    if isinstance(name, str):
        return json.dumps(shorten(name, 50))
    return ascii(name)[:50]


def _children(node: _Node) -> Iterable[_Node]:
    if isinstance(node.value, dict):
        return (_Node(node, name, value, node.depth + 1) for name, value in node.value.items())
    if isinstance(node.value, list | tuple):
        return (_Node(node, index, value, node.depth + 1) for index, value in enumerate(node.value))
    return ()


def _nodes(value: Any) -> Iterator[_Node]:
    """Yield a value, and each value within it after the container that it is in."""
    # Not recursive, because the value may be nested more deeply than Python's stack allows.
    stack: list[Iterator[_Node]] = [iter([_Node(None, None, value, 1)])]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        else:
            yield node
            stack.append(iter(_children(node)))


def _refuse_first_mistake(field: str, value: Any, dialect: Dialect) -> None:
    for node in _nodes(value):
        if problem := _problem(node, dialect):
            raise InvalidMessage(field, problem, node.path)


def _problem(node: _Node, dialect: Dialect) -> str:
    """Return the problem of a value itself, not of the values within it."""
    value = node.value
    if isinstance(value, dict | list | tuple):
        return _problem_of_container(node, dialect)
    if isinstance(value, int):
        return _problem_of_integer(value, dialect)
    if value is None or (isinstance(value, str) and value.isascii() and "\x00" not in value):
        return ""
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return _not_json(error)
    return _problem_of_text(text, dialect)


def _problem_of_container(node: _Node, dialect: Dialect) -> str:
    if node.depth > dialect.max_json_depth:
        return (
            f"is nested too deeply for the database, or contains itself; the limit is {dialect.max_json_depth} levels."
        )
    if isinstance(node.value, MultiValueDict) and any(len(values) > 1 for _, values in node.value.lists()):
        return (
            f"is a {_kind(node.value)}, of which JSON keeps only the last value of each key. Pass dict(value.lists()), "
            "or value.dict() if one value of each is enough."
        )
    return _problem_of_keys(node.value, dialect) if isinstance(node.value, dict) else ""


def _problem_of_keys(value: dict[Any, Any], dialect: Dialect) -> str:
    names: set[str] = set()
    for key in value:
        name = key
        if isinstance(key, str):
            if problem := _problem_of_text(_encode(key), dialect):
                return f"the key {_name(key)} {problem}"
            limit, size = dialect.max_json_key_bytes, len(key.encode())
            if limit and size > limit:
                return f"the key {_name(key)} is {size:,} bytes long in UTF-8; the limit is {limit:,}."
        else:
            try:
                (name,) = json.loads(_encode({key: None}))
            except (TypeError, ValueError) as error:
                return f"a key {_not_json(error)}"
        if name in names:
            return f"has two keys that JSON writes as {_name(name)}, and only one would arrive. Rename one of them."
        names.add(name)
    return ""


def _problem_of_integer(value: int, dialect: Dialect) -> str:
    if abs(value) >= 10**MAX_INTEGER_DIGITS:
        return f"is an integer with more than {MAX_INTEGER_DIGITS} digits. Send it as a string."
    # For most integers there is no need to read the limits from the server.
    if value.bit_length() < 64 or (limits := dialect.json_integers) is None or value in limits:
        return ""
    return (
        f"is {int(value)}, an integer that the database would convert to a floating-point number; the limits are "
        f"{limits.start} and {limits.stop - 1}. Send it as a string."
    )


def _problem_of_text(text: str, dialect: Dialect) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which cannot be encoded as UTF-8."
    if _NUL.search(text):
        return "contains a NUL character, which PostgreSQL cannot store in JSON."
    return problem_of_characters(text, dialect)


def problem_of_characters(text: str, dialect: Dialect) -> str:
    """Return an error that names the first character the database cannot store; empty if it can store all."""
    if dialect.can_store(text):
        return ""
    character = next((letter for letter in text if not dialect.can_store(letter)), "")
    return (
        f"contains U+{ord(character):04X}, which the database {dialect.connection.alias!r} cannot store: "
        f"its encoding is {dialect.encoding}. Convert the database to UTF8, or remove the character."
    )


def _not_json(error: BaseException) -> str:
    reason = shorten(str(error) or type(error).__name__, MAX_REASON_LENGTH)
    return (
        f"is not JSON: {reason}. Pass dicts, lists, strings, finite numbers, booleans, None, dates, aware times, "
        "Decimals or UUIDs; of other objects, the values that the consumer needs."
    )
