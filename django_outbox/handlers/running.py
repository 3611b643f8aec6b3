"""Call the handlers of a message."""

import contextvars
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync
from django.db import Error, connections

from django_outbox.error_text import describe, is_interrupt
from django_outbox.handlers.children import find_name, restore, split
from django_outbox.handlers.decoding import decode
from django_outbox.handlers.registry import AnyHandler, registry
from django_outbox.handlers.time_limits import call_within, wait_within
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED, MAX_ERROR_LENGTH, Message, Outcome, Verdict, rejected
from django_outbox.stores import get_store

NO_HANDLER = "outbox.no_handler"
"""The `error_class` of a message that has no handler."""

_database: contextvars.ContextVar[str] = contextvars.ContextVar("outbox_database")


def current_database() -> str:
    """Return the alias of the database whose transaction a handler is called in.

    Raises:
        LookupError: no handler is called.
    """
    return _database.get()


@dataclass(frozen=True, slots=True)
class Runner:
    """Calls the handlers of messages, in the transaction that is open in this thread.

    Args:
        publisher: the alias of the publisher whose messages they are.
        skip_unhandled: whether a message without a handler counts as processed.
        time_limit: the time limit in seconds of handlers without their own; None for no limit.
    """

    publisher: str
    skip_unhandled: bool
    time_limit: float | None

    def handle(self, message: Message, using: str) -> Outcome:
        """Call the handler of a message, or split the message if its type has several; return the outcome.

        Raises:
            BaseException: whatever the handler raises.
        """
        name = find_name(message)
        if name is not None:
            found = registry.find(name)
        else:
            found = registry.find_only(message.type)
            if found is None and (several := registry.for_type(message.type)):
                split(message, several, publisher=self.publisher, using=using)
                return ACCEPTED
        if found is None:
            return ACCEPTED if self.skip_unhandled else _no_handler(message, name)
        return self._call(found, restore(message), using)

    def handle_failed(self, message: Message, outcome: Outcome, using: str) -> Outcome:
        """Call the fallback of the handler in which a message failed, if there is one; return the final outcome."""
        name = find_name(message)
        found = registry.find_only(message.type) if name is None else registry.find(name)
        if found is None or found.fallback_function is None:
            return outcome
        error = outcome.cause or RuntimeError(outcome.error)
        restored = restore(message)._replace(attempts=message.attempts + 1)
        try:
            self._run(found, found.fallback_function, (decode(restored), restored, error), using)
        except BaseException as second:
            if is_interrupt(second):
                raise
            _log(found, message, second, "The fallback of handler")
            both = f"{outcome.error}; then the fallback failed: {describe(second, MAX_ERROR_LENGTH)}"
            return rejected(both, error_class=outcome.kind, cause=second)
        return ACCEPTED

    def record_failure(self, message: Message, outcome: Outcome, *, final: bool, using: str) -> None:
        """Call the recorder of the handler in which an attempt was not accepted, if there is one."""
        name = find_name(message)
        found = registry.find_only(message.type) if name is None else registry.find(name)
        if found is not None and found.recorder is not None:
            restored = restore(message)
            found.recorder(decode(restored), restored, outcome, final, using)

    def _call(self, found: AnyHandler, message: Message, using: str) -> Outcome:
        try:
            returned = self._run(found, found.function, (decode(message), message), using)
        except BaseException as error:
            if not is_interrupt(error):
                _log(found, message, error, "Handler")
            raise
        if not isinstance(returned, Outcome):
            return ACCEPTED
        if returned.verdict in (Verdict.UNANSWERED, Verdict.BLOCKED):
            raise TypeError(
                f"the handler {found.name} returned an outcome {returned.verdict.value!r}; return retry_later(), "
                "set_aside() or rejected()"
            )
        return returned

    def _run(self, found: AnyHandler, function: Callable[..., Any], arguments: tuple[Any, ...], using: str) -> Any:
        seconds = found.time_limit or self.time_limit
        # What the function sets in its context, such as the active language, ends with it.
        context = contextvars.copy_context()
        context.run(_database.set, using)
        call = partial(context.run, _sync(function, seconds), *arguments)
        if seconds is None:
            return call()
        with _limited_statements(using, seconds):
            return call() if inspect.iscoroutinefunction(function) else call_within(seconds, call)


def _sync(function: Callable[..., Any], seconds: float | None) -> Callable[..., Any]:
    """Return a function to call from sync code.

    asgiref runs a coroutine in another thread, and what it calls with `sync_to_async`, such as Django's ORM, in this
    one: on the same connection, and so in the same transaction.
    """
    if not inspect.iscoroutinefunction(function):
        return function
    if seconds is None:
        return async_to_sync(function)

    async def limited(*arguments: Any) -> Any:
        return await wait_within(seconds, function(*arguments))

    return async_to_sync(limited)


@contextmanager
def _limited_statements(using: str, seconds: float) -> Iterator[None]:
    """Let the database cancel statements that take longer than the time limit."""
    connection = connections[using]
    store = get_store(connection)
    store.limit_statements(seconds)
    try:
        yield
    except BaseException:
        # In a transaction that was aborted, the rollback removes the limit.
        with suppress(Error):
            store.limit_statements(None)
        raise
    store.limit_statements(None)


def _no_handler(message: Message, name: str | None) -> Outcome:
    if name is not None:
        return rejected(
            f"there is no handler named {name!r} any more. Restore it, or name its successor "
            f"@handler({message.type!r}, name={name!r}); then restart the relay and requeue the message",
            error_class=NO_HANDLER,
        )
    return rejected(
        f"there is no handler of the type {message.type!r}. Register one with @handler({message.type!r}) in the "
        "handlers.py of an installed app, restart the relay and requeue the message",
        error_class=NO_HANDLER,
    )


def _log(found: AnyHandler, message: Message, error: BaseException, what: str) -> None:
    logger.warning("%s %s failed for message %d: %s", what, found.name, message.id, describe(error), exc_info=error)
