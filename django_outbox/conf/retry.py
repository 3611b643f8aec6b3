"""Read the `RETRY` settings, and combine them into the retry policy of a message."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from django.utils.module_loading import import_string

from django_outbox.conf.readers import (
    Mistake,
    Mistakes,
    Reader,
    number,
    read_keys,
    read_patterns,
    read_value,
    seconds,
    whole_number,
)
from django_outbox.retry import DEFAULT_POLICY, RetryEntry, RetryPolicy


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


def choose_policy(type: str, rules: Iterable[RetryRules]) -> RetryPolicy:
    """Combine rules into the policy of a type. Later rules override earlier ones, key by key."""
    policy = DEFAULT_POLICY
    for entry in (entry for rule in rules for entry in rule.entries_for(type)):
        policy = replace(policy, **entry)
    return policy


def read_rules(value: object) -> RetryRules:
    entry = _read_entry(value, {**_READERS, "TYPES": _read_types})
    types = entry.pop("types", {})
    return RetryRules(entry, types)


def _read_types(value: object) -> dict[str, RetryEntry]:
    must_be = 'a dict with keys that are patterns of types, such as {"order.*": {"MAX_ATTEMPTS": 3}}'
    return read_patterns(value, read_entry, must_be)


def read_entry(value: object) -> RetryEntry:
    """Read a policy, a `RETRY` without `TYPES`, or raise ValueError or Mistakes."""
    return _read_entry(value, _READERS)


def _read_entry(value: object, readers: Mapping[str, Reader]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError('a dict such as {"MAX_ATTEMPTS": 5}')
    return read_keys(value, readers, [])


def _read_exceptions(value: object) -> tuple[type[BaseException], ...]:
    if not isinstance(value, list | tuple):
        raise ValueError("a list of exception classes or their dotted paths")
    mistakes: list[Mistake] = []
    classes = tuple(read_value(_read_exception, entry, f"[{index}]", mistakes) for index, entry in enumerate(value))
    if mistakes:
        raise Mistakes(mistakes)
    return classes


def _read_exception(value: Any) -> type[BaseException]:
    must_be = "an exception class or its dotted path"
    if isinstance(value, str):
        try:
            value = import_string(value)
        except Exception as error:
            # The first import of a module may raise any exception.
            raise ValueError(f"{must_be}; it cannot be imported ({error.__class__.__name__}: {error})") from None
    if not (isinstance(value, type) and issubclass(value, BaseException)):
        raise ValueError(must_be)
    return value


_READERS: dict[str, Reader] = {
    "MAX_ATTEMPTS": whole_number,
    "DELAY": seconds,
    "FACTOR": number(1, 100),
    "MAX_DELAY": seconds,
    "JITTER": number(0, 1),
    "INCLUDE": _read_exceptions,
    "EXCLUDE": _read_exceptions,
}
