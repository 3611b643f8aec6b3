"""Check that a value is JSON that the database returns unchanged, and find the path of the first mistake in it."""

import dataclasses
import decimal
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder
from django.db.models import Model, QuerySet

from django_outbox.exceptions import InvalidMessage
from django_outbox.stores.base import Store
from django_outbox.text import shorten

MAX_INTEGER_DIGITS = 308
"""Maximum digits of an integer in JSON, on every database: a longer one exceeds the range of a double."""

MAX_PATH_LENGTH = 200
"""Maximum characters of a path in an error."""

MAX_REASON_LENGTH = 150
"""Maximum characters of the encoder's own message in an error."""


class _Encoder(DjangoJSONEncoder):
    def default(self, o: Any) -> Any:
        if isinstance(o, decimal.Decimal) and not o.is_finite():
            raise ValueError(f"Decimal('{o}') is not a finite number")
        return super().default(o)


# An escaped NUL: an odd number of backslashes before u0000.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")

# More digits than any 64-bit integer has: 20, or 19 after a minus. It may also match within a string. It begins with a
# digit, because a search for one character is quick.
_LONG_NUMBER = re.compile(r"[0-9](?:[0-9]{19}|(?<=-[0-9])[0-9]{18})")


class Json(NamedTuple):
    """A value as JSON, and its size in bytes."""

    text: str
    size: int


def check_json(field: str, value: Any, store: Store, source: str = "") -> Json:
    """Return a value as JSON.

    Args:
        field: the message's field, for the error.
        value: the payload or the headers.
        store: the store of the database that it will be written to; the limits of that database apply.
        source: the JSON that the value was read from, without NaN and infinite numbers. It is returned if it proves
            the value valid, because encoding the value costs more.

    Raises:
        InvalidMessage: the value is not JSON, or the database would not return it unchanged.
    """
    # An escape may stand for a character that cannot be stored.
    if source.isascii() and source and "\\u" not in source and not _needs_closer_look(source, len(source), store):
        return Json(source, len(source))
    try:
        text = _encode(value)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        _refuse_first_mistake(field, value, store)
        raise InvalidMessage(field, _not_json(error, value)) from error
    if _needs_closer_look(text, size, store):
        _refuse_first_mistake(field, value, store)
    return Json(text, size)


def _encode(value: Any) -> str:
    return json.dumps(value, cls=_Encoder, allow_nan=False, ensure_ascii=False)


def _needs_closer_look(text: str, size: int, store: Store) -> bool:
    """Return whether the value must be checked piece by piece, because its text alone does not prove it valid."""
    return (
        "\\u0000" in text
        or text.count("[") + text.count("{") > store.max_json_depth
        or size > (store.max_json_key_bytes or size)
        or _LONG_NUMBER.search(text) is not None
        or not store.can_store(text)
    )


class _Node(NamedTuple):
    """A value within a value: its container, its key or index in it, and its depth."""

    parent: "_Node | None"
    name: Any
    value: Any
    depth: int

    @property
    def path(self) -> str:
        """Return the path to the value, such as `["lines"][3]["product"]`."""
        names: list[str] = []
        node = self
        while node.parent is not None:
            names.append(f"[{_name(node.name)}]")
            node = node.parent
        path = "".join(reversed(names))
        if len(path) <= MAX_PATH_LENGTH:
            return path
        return f"{path[: MAX_PATH_LENGTH // 2]}…{path[1 - MAX_PATH_LENGTH // 2 :]}"


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


def _refuse_first_mistake(field: str, value: Any, store: Store) -> None:
    # Not recursive, because the value may be nested more deeply than Python's stack allows.
    stack: list[Iterator[_Node]] = [iter([_Node(None, None, value, 1)])]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif problem := _problem(node, store):
            raise InvalidMessage(field, problem, node.path)
        else:
            stack.append(iter(_children(node)))


def _problem(node: _Node, store: Store) -> str:
    """Return the problem of a value, leaving out the values within it; blank if there is none."""
    value = node.value
    if isinstance(value, dict | list | tuple):
        return _problem_of_container(node, store)
    if isinstance(value, int):
        return _problem_of_integer(value, store)
    if value is None or (isinstance(value, str) and value.isascii() and "\x00" not in value):
        return ""
    try:
        text = _encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        return _not_json(error, value)
    return _problem_of_text(text, store)


def _problem_of_container(node: _Node, store: Store) -> str:
    if node.depth > store.max_json_depth:
        if _contains_itself(node):
            return "is not JSON: it contains itself."
        return f"is nested too deeply for the database; the limit is {store.max_json_depth} levels."
    return _problem_of_keys(node.value, store) if isinstance(node.value, dict) else ""


def _contains_itself(node: _Node) -> bool:
    parent = node.parent
    while parent is not None:
        if parent.value is node.value:
            return True
        parent = parent.parent
    return False


def _problem_of_keys(value: dict[Any, Any], store: Store) -> str:
    for key in value:
        if isinstance(key, str):
            problem = _problem_of_text(_encode(key), store) or _problem_of_length(key, store)
            if problem:
                return f"the key {_name(key)} {problem}"
            continue
        try:
            _encode({key: None})
        except (TypeError, ValueError) as error:
            return f"a key {_not_json(error, key)}"
    return ""


def _problem_of_length(key: str, store: Store) -> str:
    limit, size = store.max_json_key_bytes, len(key.encode())
    return f"is {size:,} bytes long in UTF-8; the limit is {limit:,}." if limit and size > limit else ""


def _problem_of_integer(value: int, store: Store) -> str:
    if abs(value) >= 10**MAX_INTEGER_DIGITS:
        return f"is an integer with more than {MAX_INTEGER_DIGITS} digits. Send it as a string."
    # For most integers there is no need to read the limits from the server.
    if value.bit_length() < 64 or (limits := store.json_integers) is None or value in limits:
        return ""
    return (
        f"is {int(value)}, an integer that the database would convert to a floating-point number; the limits are "
        f"{limits.start} and {limits.stop - 1}. Send it as a string."
    )


def _problem_of_text(text: str, store: Store) -> str:
    """Return the problem of a string that is given as JSON; blank if there is none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains a lone surrogate, which cannot be encoded as UTF-8."
    if _NUL.search(text):
        return "contains a NUL character, which PostgreSQL cannot store in JSON."
    return problem_of_characters(text, store)


def problem_of_characters(text: str, store: Store) -> str:
    """Return an error that names the first character the database cannot store; blank if it can store all."""
    if store.can_store(text):
        return ""
    character = next((letter for letter in text if not store.can_store(letter)), "")
    return (
        f"contains U+{ord(character):04X}, which the database {store.connection.alias!r} cannot store: "
        f"its encoding is {store.encoding}. Convert the database to UTF8, or remove the character."
    )


def _not_json(error: BaseException, value: object) -> str:
    reason = shorten(str(error) or type(error).__name__, MAX_REASON_LENGTH)
    return f"is not JSON: {reason}. {_remedy(value)}"


def _remedy(value: object) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "Pass dataclasses.asdict(value)."
    if isinstance(value, Model):
        return "Pass the fields that the consumer needs."
    if isinstance(value, QuerySet):
        return "Pass list(queryset.values(...)), with the fields that the consumer needs."
    if isinstance(value, set | frozenset):
        return "Pass a list."
    if isinstance(value, bytes | bytearray | memoryview):
        return "Pass text, for example base64."
    return "Pass dicts, lists, strings, numbers, booleans, None, dates, Decimals or UUIDs."
