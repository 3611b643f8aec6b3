"""What the `RETRY` settings say: how they are read, and which policy they make for a message."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, TypeAlias, cast, get_args

from django.utils.module_loading import import_string

from django_outbox.retry import DEFAULT_POLICY, Backoff, RetryFunction, RetryPolicy
from django_outbox.setting_values import Mistake, Mistakes, Reader, number, read_value, seconds, whole_number

Words: TypeAlias = Mapping[str, Any] | RetryFunction
"""What is said in one place: some fields of a `RetryPolicy`, or a function in place of all of them."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """One `RETRY`: what it says for all types, and for those that fit a pattern, in the order written."""

    words: Words = field(default_factory=dict)
    types: Mapping[str, Words] = field(default_factory=dict)

    def said_of(self, type: str) -> Iterable[Words]:
        """Return what is said of a type, and last what counts most: that of the first pattern that fits."""
        yield self.words
        for pattern, words in self.types.items():
            if fnmatchcase(type, pattern):
                yield words
                return


def choose_policy(type: str, rules: Iterable[RetryRules]) -> RetryPolicy | RetryFunction:
    """Return what rules say together of a type, the later ones over the earlier, key by key.

    A function takes the place of all that was said before it; keys said over a function begin from the defaults.
    """
    policy: RetryPolicy | RetryFunction = DEFAULT_POLICY
    for words in (words for rule in rules for words in rule.said_of(type)):
        if not isinstance(words, Mapping):
            policy = words
        elif words:
            policy = replace(policy if isinstance(policy, RetryPolicy) else DEFAULT_POLICY, **words)
    return policy


def read_rules(value: object) -> RetryRules:
    """Read one `RETRY`.

    Raises:
        ValueError: it is no such thing, and what it must be.
        Mistakes: everything that is wrong within it.
    """
    words = _read_words(value, {**_READERS, "TYPES": _read_types})
    if not isinstance(words, dict):
        return RetryRules(words)
    types = words.pop("types", {})
    return RetryRules(words, types)


def _read_types(value: object) -> dict[str, Words]:
    if not isinstance(value, Mapping):
        raise ValueError('a dict by patterns of types, such as {"order.*": {"MAX_ATTEMPTS": 3}}')
    mistakes: list[Mistake] = []
    types = {}
    for pattern, entry in value.items():
        where = f"[{pattern!r}]"
        if not isinstance(pattern, str) or not pattern:
            mistakes.append(Mistake(f"{where} is no pattern.", 'It must be a text such as "order.*".'))
        types[pattern] = read_value(partial(_read_words, readers=_READERS), entry, where, mistakes)
    if mistakes:
        raise Mistakes(mistakes)
    return types


def _read_words(value: object, readers: Mapping[str, Reader]) -> dict[str, Any] | RetryFunction:
    if not isinstance(value, Mapping):
        return _read_function(value)
    mistakes: list[Mistake] = []
    words = {}
    for name, entry in value.items():
        if name in readers:
            words[name.lower()] = read_value(readers[name], entry, f"[{name!r}]", mistakes)
        else:
            mistakes.append(Mistake(f" has an unknown key {name!r}.", f"Known keys: {', '.join(readers)}."))
    if mistakes:
        raise Mistakes(mistakes)
    return words


def _read_function(value: object) -> RetryFunction:
    must_be = "a dict, or a function of attempt, outcome and message or its dotted path"
    function = _imported(value, must_be)
    if isinstance(function, type) or not callable(function) or inspect.iscoroutinefunction(function):
        raise ValueError(must_be)
    try:
        inspect.signature(function).bind(1, None, None)
    except TypeError as error:
        raise ValueError(f"{must_be}; this one cannot be called with three ({error})") from None
    except ValueError:
        pass  # Some functions written in C do not tell what they take.
    return cast("RetryFunction", function)


def _read_backoff(value: object) -> Backoff:
    if value not in get_args(Backoff):
        raise ValueError(" or ".join(f'"{name}"' for name in get_args(Backoff)))
    return cast("Backoff", value)


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
    """Return what a dotted path leads to, or anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return import_string(value)
    except Exception as error:
        # Any error may come out of a module that is imported for the first time.
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
