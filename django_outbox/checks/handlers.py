"""Check the local handlers, and that messages reach them."""

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning

from django_outbox.brokers.registry import import_backend
from django_outbox.checks.registration import of_settings, registered
from django_outbox.conf import OutboxSettings
from django_outbox.events.registry import registry as event_registry
from django_outbox.handlers.publisher import HandlersPublisher
from django_outbox.handlers.registry import AnyHandler, registry
from django_outbox.messages import DJANGO_TASK
from django_outbox.utils.text import counted, did_you_mean


@of_settings
def check_handlers(settings: OutboxSettings) -> Iterator[CheckMessage]:
    """Check that messages reach the local handlers, and that no copy of a failed message does."""
    backends = {alias: import_backend(config.backend) for alias, config in settings.publishers.items()}
    calling = [alias for alias, backend in backends.items() if issubclass(backend, HandlersPublisher)]
    if calling:
        yield from _find_unreachable_handlers(settings, calling)
    elif [*registry]:
        yield Warning(
            f"{counted(len([*registry]), 'local handler')} registered, but OUTBOX['PUBLISHERS'] has no "
            "HandlersPublisher, so none is called.",
            hint='Add "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}.',
            id="django_outbox.W025",
        )
    alias = settings.dead_letter_publisher
    if alias in calling:
        yield Error(
            f"OUTBOX['DEAD_LETTER_PUBLISHER'] is {alias!r}, which takes no copies of failed messages: it delivers "
            "messages of the outbox only.",
            hint="Name the publisher of a broker, or use the signal messages_failed.",
            id="django_outbox.E027",
        )


@registered
def check_handler_functions() -> Iterator[CheckMessage]:
    """Check the local handlers: names that are taken, functions that cannot be called, patterns as types."""
    for second in registry.duplicates:
        if twin := registry.find_twin(second):
            yield Error(
                f"One file is imported as two modules, and its handler is registered twice: {_place(twin)} and "
                f"{_place(second)}. Only the first one is called.",
                hint="Import the module by one name everywhere, the one that INSTALLED_APPS has for its app.",
                id="django_outbox.E025",
            )
            continue
        first = registry.find(second.name)
        yield Error(
            f"Two handlers have the name {second.name!r}: {_place(first)} and {_place(second)}. Only the first one is "
            "called.",
            hint='Give one of them another name: @handler(..., name="send_receipt"). For several types, use one '
            '@handler("order.created", "order.paid").',
            id="django_outbox.E025",
        )
    for each in registry:
        for type in filter(_is_pattern, each.types):
            yield Warning(
                f"The handler {each.name!r} is registered for {type!r}. Patterns are not supported: the handler gets "
                "only messages of exactly this type.",
                hint='Name each type: @handler("order.created", "order.paid"). Patterns are for OUTBOX[\'ROUTES\'].',
                id="django_outbox.W027",
            )
        yield from _check_function(each, each.function, "handler", "event, message")
        if each.fallback_function is not None:
            yield from _check_function(each, each.fallback_function, "fallback of the handler", "event, message, error")


def _find_unreachable_handlers(settings: OutboxSettings, publishers: Collection[str]) -> Iterator[CheckMessage]:
    """Yield the handlers that no route reaches, and the types that are routed to handlers but have none."""
    events = {each.type: each for each in event_registry}

    def destinations(type: str) -> tuple[str, ...]:
        own = events[type].publisher if type in events else None
        return settings.publishers_of(type) if own is None else (own,)

    for checked in registry:
        # Consumers bring messages of any type. A Django task names its publisher.
        for type in () if settings.consumers else checked.types:
            if type != DJANGO_TASK and not _is_pattern(type) and not {*destinations(type)} & {*publishers}:
                yield _not_reached(checked, type, destinations(type), min(publishers))
    handled = sorted({type for checked in registry for type in checked.types})
    failing = {alias for alias in publishers if settings.publishers[alias].options.get("unhandled") != "skip"}
    exact = {type for type in settings.routes if not _is_pattern(type)}
    for type in sorted({*events, *exact} - {*handled}):
        for alias in destinations(type):
            if alias in failing:
                what = "event" if type in events else "type"
                similar = did_you_mean(type, handled)
                yield Warning(
                    f"The {what} {type} goes to {alias!r}, but no handler is registered for it, so its messages fail.",
                    hint=f"{similar}Register one with @handler({type!r}), send the {what} elsewhere, or set the option "
                    '"unhandled" of the publisher to "skip".',
                    id="django_outbox.W052",
                )


def _not_reached(checked: AnyHandler, type: str, destinations: Sequence[str], alias: str) -> CheckMessage:
    listed = ", ".join(map(repr, destinations))
    entry = ", ".join(f'"{each}"' for each in (*destinations, alias))
    return Warning(
        f"The handler {checked.name} handles {type}, which goes to {listed} only, so the handler is never called.",
        hint=f"Add \"{type}\": [{entry}] to OUTBOX['ROUTES'], before wider patterns. If each call of enqueue() passes "
        f"publisher={alias!r}, silence this check.",
        id="django_outbox.W051",
    )


def _is_pattern(type: str) -> bool:
    return any(character in type for character in "*?[")


def _check_function(
    checked: AnyHandler, function: Callable[..., Any], what: str, parameters: str
) -> Iterator[CheckMessage]:
    problem = ""
    if _is_generator(function):
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


def _is_generator(function: Callable[..., Any]) -> bool:
    """Return whether a call of a function, or of an object with `__call__`, only makes a generator."""
    called = (function, type(function).__call__)
    return any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in called)


def _place(each: AnyHandler | None) -> str:
    function = inspect.unwrap(each.function) if each else None
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"
