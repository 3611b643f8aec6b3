"""Read the `ROUTES` setting, and choose the publishers of a type."""

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

from django_outbox.conf.readers import Mistake, read_patterns
from django_outbox.utils.text import did_you_mean

Routes: TypeAlias = Mapping[str, tuple[str, ...]]
"""Patterns of types, in the order written, and the aliases of the publishers that their messages go to."""

EXAMPLE = 'a dict of patterns and lists of publishers, such as {"order.*": ["default", "audit"]}'


def choose_publishers(type: str, routes: Routes) -> tuple[str, ...]:
    """Return the aliases of the first pattern that matches a type, or `default` if none does."""
    for pattern, publisher_aliases in routes.items():
        if fnmatchcase(type, pattern):
            return publisher_aliases
    return ("default",)


def read_routes(value: object) -> Routes:
    """Read `ROUTES`, or raise ValueError or Mistakes. Whether the publishers are configured is not checked."""
    return read_patterns(value, _read_aliases, EXAMPLE)


def _read_aliases(value: object) -> tuple[str, ...]:
    if (
        not isinstance(value, list | tuple)
        or not value
        or not all(isinstance(alias, str) for alias in value)
        or len(set(value)) < len(value)
    ):
        raise ValueError("a list of at least one alias in OUTBOX['PUBLISHERS'], each of them once: [\"default\"]")
    return tuple(value)


def find_unknown_aliases(routes: Routes, known: Collection[str]) -> Iterator[Mistake]:
    for pattern, aliases in routes.items():
        for alias in aliases:
            if alias not in known:
                message = f"[{pattern!r}] names the publisher {alias!r}, which is not configured."
                yield Mistake(message, hint_of_publisher(alias, known))


def hint_of_publisher(unknown: str, known: Collection[str]) -> str:
    return f"{did_you_mean(unknown, known)}OUTBOX['PUBLISHERS'] has {', '.join(sorted(known))}."


def find_unreachable(routes: Routes) -> Iterator[tuple[str, str]]:
    """Yield each pattern that never applies, with an earlier one that matches all of its types."""
    earlier: list[str] = []
    for pattern in routes:
        for other in earlier:
            # Only a `*` matches the wildcards of a later pattern; `?` and sets might match them as characters.
            if not {"?", "["} & {*other} and fnmatchcase(pattern, other):
                yield pattern, other
                break
        earlier.append(pattern)
