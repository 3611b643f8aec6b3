"""Find mistakes in the registered handlers."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from django_outbox.handlers.registry import AnyHandler, Registry


def find_mistakes(registry: Registry) -> Iterator[CheckMessage]:
    """Yield the mistakes: two handlers of one name, a function that cannot be called, a pattern instead of a type."""
    for second in registry.duplicates:
        first = registry.find(second.name)
        yield Error(
            f"Two handlers have the name {second.name!r}: {_place(first)} and {_place(second)}. Only the first one is "
            "called.",
            hint='Give one of them another name: @handler(..., name="send_receipt"). For several types, use one '
            '@handler("order.created", "order.paid").',
            id="django_outbox.E025",
        )
    for each in registry:
        yield from _check_types(each)
        yield from _check_function(each, each.function, "handler", "event, message")
        if each.fallback_function is not None:
            yield from _check_function(each, each.fallback_function, "fallback of the handler", "event, message, error")


def _check_types(checked: AnyHandler) -> Iterator[CheckMessage]:
    for type in checked.types:
        if any(character in type for character in "*?["):
            yield Warning(
                f"The handler {checked.name!r} is registered for {type!r}. Patterns are not supported: the handler "
                "gets only messages of exactly this type.",
                hint='Name each type: @handler("order.created", "order.paid"). Patterns are for OUTBOX[\'ROUTES\'].',
                id="django_outbox.W027",
            )


def _check_function(
    checked: AnyHandler, function: Callable[..., Any], what: str, parameters: str
) -> Iterator[CheckMessage]:
    problem = ""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        problem = "it is a generator, so calling it runs none of its code"
    else:
        try:
            inspect.signature(function).bind(*parameters.split(", "))
        except TypeError as error:
            problem = str(error)
        except ValueError:
            pass  # Some functions written in C have no signature.
    if problem:
        yield Error(
            f"The {what} {checked.name!r} cannot be called with {parameters}: {problem}.",
            hint=f"Define it as: def {getattr(function, '__name__', 'function')}({parameters}).",
            id="django_outbox.E026",
        )


def _place(each: AnyHandler | None) -> str:
    function = inspect.unwrap(each.function) if each else None
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
