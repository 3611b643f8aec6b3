"""Numbers and ids as log lines and commands show them."""

from collections.abc import Iterable
from itertools import islice

MAX_IDS = 10
"""Maximum number of ids in one line."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: "1 message", "2,000 messages".

    Args:
        number: how many there are.
        noun: the noun in the singular.
        plural: the noun in the plural, by default with an "s".
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def some_ids(ids: Iterable[int]) -> str:
    """Return the first ids: "id 7", "ids 7, 8", with an ellipsis if there are more than `MAX_IDS`."""
    first = [str(id) for id in islice(ids, MAX_IDS + 1)]
    listed = ", ".join([*first[:MAX_IDS], "…"] if len(first) > MAX_IDS else first)
    return f"id {listed}" if len(first) == 1 else f"ids {listed}"


_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def duration(seconds: float) -> str:
    """Return a duration in at most two units: "0.4 s", "47 s", "12 min", "3 h 5 min", "2 d 4 h"."""
    if seconds < 10:
        return f"{max(seconds, 0.0):.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    for (size, unit), (smaller, smaller_unit) in zip(_UNITS, [*_UNITS[1:], (1, "s")], strict=True):
        if whole >= size:
            rest = whole % size // smaller
            # Beyond ten minutes, seconds mean little.
            shown = rest and (unit != "min" or whole < 600)
            return f"{whole // size:,} {unit}" + (f" {rest} {smaller_unit}" if shown else "")
    return f"{whole} s"
