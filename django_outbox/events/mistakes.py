"""Mistakes in an event that pydantic does not find, or does not locate."""

from collections.abc import Callable, Iterator
from typing import Any


def find_surrogate(encoded: Any) -> str:
    """Return the path of the first text with a lone surrogate, and the problem; blank if there is none.

    Args:
        encoded: the event as JSON or Python values.
    """
    for path, value in _walk(encoded):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{path}: contains a lone surrogate, which cannot be encoded as UTF-8"
        except AttributeError:
            continue
    return ""


def find_converted_bool(values: Any, encoded: Any, read_back: Callable[[], Any]) -> str:
    """Return the path of the first boolean that was encoded as a number, and the problem; blank if there is none.

    In Python, a bool is an int, so a type checker accepts it for an `int` or a `float`, and pydantic encodes it as 1
    or 0.

    Args:
        values: the event as Python values.
        encoded: the event as JSON values.
        read_back: returns the encoded event as Python values again. It is called only if there may be a mistake,
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
    """Yield the path of each value that is not a container, and both values. The order of keys is that of the class."""
    if isinstance(first, dict) and isinstance(second, dict):
        for value, (name, other) in zip(first.values(), second.items(), strict=False):
            yield from _pairs(value, other, f"{path}.{name}" if path else str(name))
    elif isinstance(first, _SEQUENCES) and isinstance(second, _SEQUENCES):
        for index, (value, other) in enumerate(zip(first, second, strict=False)):
            yield from _pairs(value, other, f"{path}.{index}")
    else:
        yield path, first, second


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path of each value that is not a container, and the value; for a key, the path of its value."""
    if isinstance(value, dict):
        for name, each in value.items():
            below = f"{path}.{name}" if path else str(name)
            yield ascii(below), name
            yield from _walk(each, below)
    elif isinstance(value, _SEQUENCES):
        for index, each in enumerate(value):
            yield from _walk(each, f"{path}.{index}")
    else:
        yield path, value
