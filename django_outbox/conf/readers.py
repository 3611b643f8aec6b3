"""Readers of single values of the `OUTBOX` setting.

A reader takes the raw value and returns the value in use, or raises a ValueError that completes "It must be".
"""

import datetime
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from django_outbox.retry import is_number

Reader: TypeAlias = Callable[[object], Any]


class Mistake(NamedTuple):
    """One mistake and its remedy. The message begins with the path to the value."""

    message: str
    hint: str


class Mistakes(ValueError):
    """Mistakes within one value. The path of each one is relative to that value: `['DELAY']`."""

    def __init__(self, found: list[Mistake]) -> None:
        super().__init__(" ".join(mistake.hint for mistake in found))
        self.found = found


def read_value(reader: Reader, value: object, where: str, mistakes: list[Mistake]) -> Any:
    """Return the value as read, or None after adding its mistakes."""
    try:
        return reader(value)
    except Mistakes as error:
        mistakes += [Mistake(f"{where}{mistake.message}", mistake.hint) for mistake in error.found]
    except ValueError as error:
        mistakes.append(Mistake(f"{where} is {value!r}.", f"It must be {error}."))
    return None


def hint_of_key(unknown: object, known: Iterable[str]) -> str:
    """Return the hint about an unknown key: the known key most similar to it, if there is one, and all known keys."""
    names = {name.upper(): name for name in sorted(known)}
    similar = get_close_matches(str(unknown).upper(), names, n=1)
    return "".join(f"Did you mean {names[name]}? " for name in similar) + f"Known keys: {', '.join(names.values())}."


def read_keys(value: Mapping[Any, object], readers: Mapping[str, Reader], mistakes: list[Mistake]) -> dict[str, Any]:
    """Return the values of a dict as read, by their keys in lower case, or raise all mistakes."""
    found = {}
    for name, raw in value.items():
        if name in readers:
            found[name.lower()] = read_value(readers[name], raw, f"[{name!r}]", mistakes)
        else:
            mistakes.append(Mistake(f" has an unknown key {name!r}.", hint_of_key(name, readers)))
    if mistakes:
        raise Mistakes(mistakes)
    return found


def read_patterns(value: object, reader: Reader, must_be: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(must_be)
    mistakes: list[Mistake] = []
    found = {}
    for pattern, raw in value.items():
        where = f"[{pattern!r}]"
        if not isinstance(pattern, str) or not pattern:
            hint = 'It must be a non-blank string, such as "order.*".'
            mistakes.append(Mistake(f"{where} is not a valid pattern.", hint))
        found[pattern] = read_value(reader, raw, where, mistakes)
    if mistakes:
        raise Mistakes(mistakes)
    return found


def optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def whole_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of at least 1")
    return value


def at_least_a_second(value: object) -> float:
    if (read := seconds(value)) < 1:
        raise ValueError("a number of seconds of at least 1, or an equivalent timedelta")
    return read


def seconds(value: object) -> float:
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if not is_number(value) or not 0 < value < 86_400 * 365:
        raise ValueError("a number of seconds greater than 0 and less than a year, or an equivalent timedelta")
    return float(value)


def number(lowest: float, highest: float) -> Reader:
    def read(value: object) -> float:
        if not is_number(value) or not lowest <= value <= highest:
            raise ValueError(f"a number from {lowest:g} to {highest:g}")
        return float(value)

    return read


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def publisher_alias_or_none(value: object) -> str | None:
    """Read the alias of a publisher, or None. Whether that publisher is configured is not checked."""
    if value is None or isinstance(value, str):
        return value
    raise ValueError("the alias of a publisher, or None to send no copies of failed messages")


def dotted_path_or_none(value: object) -> str | None:
    """Read the dotted path of a function, or None. Whether it can be imported is not checked."""
    if value is None or (isinstance(value, str) and "." in value):
        return value
    raise ValueError("the dotted path of a function, or None")


def time_to_keep(value: object) -> datetime.timedelta | None:
    """Read the time for which processed messages are kept; None keeps them forever."""
    if value is None or (isinstance(value, datetime.timedelta) and value >= datetime.timedelta(0)):
        return value
    raise ValueError("a timedelta of 0 or more, or None to keep messages forever")
