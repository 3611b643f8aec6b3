"""Mistakes in an event that pydantic does not find, or does not locate."""

import datetime
from collections.abc import Callable, Iterator
from typing import Any

from django.utils.functional import Promise


def find_surrogate(encoded: Any) -> str:
    """Return the path of the first text with a lone surrogate, and the problem; blank if there is none."""
    for path, value in _walk(encoded):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{path}: contains a lone surrogate, which cannot be encoded as UTF-8"
        except AttributeError:
            continue
    return ""


def find_unserializable(values: Any, is_serializable: Callable[[object], bool]) -> str:
    """Return the path of the first value that cannot be written as JSON, and the problem; blank if there is none."""
    for path, value in _walk(values):
        if is_serializable(value):
            continue
        if isinstance(value, Promise):
            return f"{path}: is a lazy translation; call str() on it"
        if isinstance(value, bytes | bytearray):
            return f"{path}: contains bytes that are not UTF-8"
        return f"{path}: a value of type {type(value).__qualname__} cannot be written as JSON"
    return ""


def find_change(sent: Any, received: Any, path: str = "") -> str:
    """Return the path of the first value that would not arrive as it was sent, and the problem; blank if there is none.

    `sent` is the event as Python values, and `received` the encoded event as Python values again.
    """
    if sent == received or not _has_equality(sent):
        return ""
    # NaN differs from itself.
    if sent != sent and received != received:  # noqa: PLR0124
        return ""
    if _is_same_instant(sent, received):
        return ""
    if isinstance(sent, dict) and isinstance(received, dict):
        is_alike = sent.keys() == received.keys()
    else:
        is_alike = isinstance(sent, _SEQUENCES) and type(sent) is type(received) and len(sent) == len(received)
    if is_alike:
        return _find_below(find_change, sent, received, path)
    before, after = type(sent).__qualname__, type(received).__qualname__
    kind = f"as {after}, not {before}" if before != after else "changed"
    return f"{path or 'the payload'}: would arrive {kind}. Give the field a type that keeps the value"


def find_lost_field(sent: Any, received: Any, path: str = "") -> str:
    """Return the path of the first object that would arrive without some of its fields, and the problem.

    It is blank if there is none. Takes the arguments of `find_change`, with all fields of each object.
    """
    if isinstance(sent, dict) and isinstance(received, dict):
        if lost := [str(name) for name in sent if name not in received]:
            return f"{path or 'the payload'}: has {lost[0]!r}, which the class of its annotation lacks"
    elif not (isinstance(sent, _SEQUENCES) and isinstance(received, _SEQUENCES)):
        return ""
    return _find_below(find_lost_field, sent, received, path)


def _find_below(find: Callable[[Any, Any, str], str], sent: Any, received: Any, path: str) -> str:
    """Return the first problem that `find` finds in the values of two dicts or sequences."""
    names = sent.keys() if isinstance(sent, dict) else range(min(len(sent), len(received)))
    problems = (find(sent[name], received[name], _below(path, name)) for name in names)
    return next(filter(None, problems), "")


def _is_same_instant(sent: object, received: object) -> bool:
    """Return whether two aware times are the same. Python's `==` is False for a repeated hour in another time zone."""
    times = [each for each in (sent, received) if isinstance(each, datetime.datetime) and each.utcoffset() is not None]
    return len(times) == 2 and len({each.astimezone(datetime.timezone.utc) for each in times}) == 1


def _has_equality(value: object) -> bool:
    compare: Any = type(value).__eq__
    return compare is not object.__eq__


def _below(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def find_converted_bool(values: Any, encoded: Any, read_back: Callable[[], Any]) -> str:
    """Return the path of the first boolean that was encoded as a number, and the problem; blank if there is none.

    In Python, a bool is an int, so a type checker accepts it for an `int` or a `float`, and pydantic encodes it as 1
    or 0. `read_back` returns the encoded event as Python values again; it is called only if there may be a mistake,
    because a class may encode its booleans as numbers.
    """
    if not _has_converted(values, encoded):
        return ""
    suspicious = {path for path, value, number in _pairs(values, encoded) if _has_converted(value, number)}
    for path, _, read in _pairs(values, read_back()):
        if path in suspicious and not isinstance(read, bool):
            return f"{path}: must be a number, not bool"
    return ""


def _has_converted(value: Any, encoded: Any) -> bool:
    """Return whether a boolean was encoded as a number. Every event is searched, so it does without paths."""
    if value is True or value is False:
        return encoded is not value and isinstance(encoded, int | float)
    if type(value) is dict and type(encoded) is dict:
        return any(map(_has_converted, value.values(), encoded.values()))
    if type(value) in _SEQUENCES and type(encoded) is list:
        return any(map(_has_converted, value, encoded))
    return False


_SEQUENCES = (list, tuple)


def _pairs(first: Any, second: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the path of each value that is not a container, and both values. The class determines the order of keys."""
    if isinstance(first, dict) and isinstance(second, dict):
        for value, (name, other) in zip(first.values(), second.items(), strict=False):
            yield from _pairs(value, other, _below(path, name))
    elif isinstance(first, _SEQUENCES) and isinstance(second, _SEQUENCES):
        for index, (value, other) in enumerate(zip(first, second, strict=False)):
            yield from _pairs(value, other, f"{path}.{index}")
    else:
        yield path, first, second


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each value that is not a container, and the value; for a key, the path of its value."""
    if isinstance(value, dict):
        for name, each in value.items():
            below = _below(path, name)
            yield ascii(below), name
            yield from _walk(each, below)
    elif isinstance(value, _SEQUENCES):
        for index, each in enumerate(value):
            yield from _walk(each, f"{path}.{index}")
    else:
        yield path, value
