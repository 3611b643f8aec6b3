"""Readers of single values of the `OUTBOX` setting.

Each takes what was written and returns it in the form that is used, or raises a ValueError that says what it must be.
"""

import datetime
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

Reader: TypeAlias = Callable[[object], Any]


class Mistake(NamedTuple):
    """One thing that is wrong, and the remedy; `said` begins with where it stands."""

    said: str
    hint: str


class Mistakes(ValueError):
    """Several things are wrong within one value; where each stands begins below that value: `['DELAY']`."""

    def __init__(self, found: list[Mistake]) -> None:
        super().__init__(" ".join(mistake.hint for mistake in found))
        self.found = found


def read_value(reader: Reader, value: object, where: str, mistakes: list[Mistake]) -> Any:
    """Return what the reader makes of a value, or add what is wrong with it to `mistakes` and return None."""
    try:
        return reader(value)
    except Mistakes as error:
        mistakes += [Mistake(f"{where}{mistake.said}", mistake.hint) for mistake in error.found]
    except ValueError as error:
        mistakes.append(Mistake(f"{where} is {value!r}.", f"It must be {error}."))
    return None


def whole_number(value: object) -> int:
    """Read a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a whole number of at least 1")
    return value


def at_least_a_second(value: object) -> float:
    """Read a time that is no shorter than a second."""
    if (read := seconds(value)) < 1:
        raise ValueError("a number of seconds of at least 1")
    return read


def seconds(value: object) -> float:
    """Read a time, as a number of seconds or a timedelta."""
    if isinstance(value, datetime.timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 86_400 * 365:
        raise ValueError("a number of seconds above 0 and below a year")
    return float(value)


def number(lowest: float, highest: float) -> Reader:
    """Return the reader of a number between two others, both allowed."""

    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            raise ValueError(f"a number from {lowest:g} to {highest:g}")
        return float(value)

    return read


def flag(value: object) -> bool:
    """Read True or False."""
    if not isinstance(value, bool):
        raise ValueError("True or False")
    return value


def alias_or_none(value: object) -> str | None:
    """Read the alias of a publisher, or None; whether there is such a publisher is not looked at."""
    if value is None or isinstance(value, str):
        return value
    raise ValueError("the alias of a publisher, or None for no copies of failed messages")


def retention(value: object) -> datetime.timedelta | None:
    """Read how long processed messages are kept, or None for ever."""
    if value is None or (isinstance(value, datetime.timedelta) and value >= datetime.timedelta(0)):
        return value
    raise ValueError("a timedelta of 0 or more, or None to keep messages for ever")
