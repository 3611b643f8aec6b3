"""Read the `RETRY` settings, and combine them into the retry policy of a message."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast, get_args

from django.utils.module_loading import import_string

from django_outbox.conf.readers import (
    Mistake,
    Mistakes,
    Reader,
    hint_of_key,
    number,
    read_value,
    seconds,
    whole_number,
)
from django_outbox.retry import DEFAULT_POLICY, Kind, RetryEntry, RetryFunction, RetryPolicy


@dataclass(frozen=True, slots=True)
class RetryRules:
    """One `RETRY`: the entry for all types, and the entries for types that match a pattern, in the order written."""

    for_all: RetryEntry = field(default_factory=dict)
    types: Mapping[str, RetryEntry] = field(default_factory=dict)

    def entries_for(self, type: str) -> Iterable[RetryEntry]:
        """Yield the entry for all types, then the entry of the first pattern that matches, which takes precedence."""
        yield self.for_all
        for pattern, entry in self.types.items():
            if fnmatchcase(type, pattern):
                yield entry
                return


def choose_policy(type: str, rules: Iterable[RetryRules]) -> RetryPolicy | RetryFunction:
    """Combine rules into the policy of a type. Later rules override earlier ones, key by key.

    A function replaces everything before it. Keys that override a function start from the defaults.
    """
    policy: RetryPolicy | RetryFunction = DEFAULT_POLICY
    for entry in (entry for rule in rules for entry in rule.entries_for(type)):
        policy = override(policy, entry)
    return policy


def override(policy: RetryPolicy | RetryFunction, entry: RetryEntry) -> RetryPolicy | RetryFunction:
    """Return a policy with the keys of an entry instead of its own, or the function that replaces it."""
    if not isinstance(entry, Mapping):
        return entry
    return replace(policy if isinstance(policy, RetryPolicy) else DEFAULT_POLICY, **entry) if entry else policy


def read_rules(value: object) -> RetryRules:
    """Read one `RETRY`, or raise ValueError or Mistakes."""
    entry = _read_entry(value, {**_READERS, "TYPES": _read_types})
    if not isinstance(entry, dict):
        return RetryRules(entry)
    types = entry.pop("types", {})
    return RetryRules(entry, types)


def read_entry(value: object) -> RetryEntry:
    """Read the policy of one handler, a `RETRY` without `TYPES`, or raise ValueError or Mistakes."""
    return _read_entry(value, _READERS)


def read_patterns(value: object, example: str) -> dict[str, RetryEntry]:
    """Read policies by the patterns of names.

    Args:
        example: the names that the keys match, with an example of a value.

    Raises:
        ValueError: it is not a dict.
        Mistakes: all mistakes within the dict.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"a dict with keys that are patterns of {example}")
    mistakes: list[Mistake] = []
    types = {}
    for pattern, entry in value.items():
        where = f"[{pattern!r}]"
        if not isinstance(pattern, str) or not pattern:
            mistakes.append(
                Mistake(f"{where} is not a valid pattern.", 'It must be a non-blank string, such as "order.*".')
            )
        types[pattern] = read_value(partial(_read_entry, readers=_READERS), entry, where, mistakes)
    if mistakes:
        raise Mistakes(mistakes)
    return types


def _read_types(value: object) -> dict[str, RetryEntry]:
    return read_patterns(value, 'types, such as {"order.*": {"MAX_ATTEMPTS": 3}}')


def _read_entry(value: object, readers: Mapping[str, Reader]) -> dict[str, Any] | RetryFunction:
    if not isinstance(value, Mapping):
        return _read_function(value)
    mistakes: list[Mistake] = []
    entry = {}
    for name, raw in value.items():
        if name in readers:
            entry[name.lower()] = read_value(readers[name], raw, f"[{name!r}]", mistakes)
        else:
            mistakes.append(Mistake(f" has an unknown key {name!r}.", hint_of_key(name, readers)))
    if mistakes:
        raise Mistakes(mistakes)
    return entry


def _read_function(value: object) -> RetryFunction:
    must_be = "a dict, or a function with the parameters attempt, outcome and message, or its dotted path"
    function = _imported(value, must_be)
    if isinstance(function, type) or not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(must_be)
    try:
        inspect.signature(function).bind(1, None, None)
    except TypeError as error:
        raise ValueError(f"{must_be}; this one does not accept three arguments ({error})") from None
    except ValueError:
        pass  # Some functions written in C have no signature.
    return cast("RetryFunction", function)


def _read_backoff(value: object) -> Kind:
    if value not in get_args(Kind):
        raise ValueError('"fixed", "linear" or "exponential"')
    return cast("Kind", value)


def _read_exceptions(value: object) -> tuple[type[BaseException], ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list of exception classes or their dotted paths")
    mistakes: list[Mistake] = []
    classes = tuple(read_value(_read_exception, entry, f"[{index}]", mistakes) for index, entry in enumerate(value))
    if mistakes:
        raise Mistakes(mistakes)
    return classes


def _read_exception(value: object) -> type[BaseException]:
    must_be = "an exception class or its dotted path"
    found = _imported(value, must_be)
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        raise ValueError(must_be)
    return found


def _imported(value: object, must_be: str) -> object:
    """Return the object at a dotted path; return a value that is not a string unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except Exception as error:
        # The first import of a module may raise any exception.
        raise ValueError(f"{must_be}; it cannot be imported ({error.__class__.__name__}: {error})") from None


_READERS: dict[str, Reader] = {
    "MAX_ATTEMPTS": whole_number,
    "BACKOFF": _read_backoff,
    "DELAY": seconds,
    "FACTOR": number(1, 100),
    "MAX_DELAY": seconds,
    "JITTER": number(0, 1),
    "INCLUDE": _read_exceptions,
    "EXCLUDE": _read_exceptions,
}
