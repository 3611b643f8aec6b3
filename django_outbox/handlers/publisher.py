"""A publisher that calls this project's own handlers, each within its time limit and until what it returns has run.

A message of a type with several handlers is split: each handler gets its own message and retries.
"""

import asyncio
import contextvars
import hashlib
import inspect
import json
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync
from django.db import Error, connections
from django.utils.dateparse import parse_datetime

from django_outbox.brokers.options import require_choice, require_flag, require_seconds
from django_outbox.brokers.outcomes import read_outcome
from django_outbox.brokers.publisher import Publisher
from django_outbox.enqueueing.new_message import NewMessage
from django_outbox.enqueueing.writing import new_row
from django_outbox.events.registry import decode_event
from django_outbox.events.registry import registry as events
from django_outbox.exceptions import InvalidEvent, Reject, RetryLater
from django_outbox.handlers.registry import AnyHandler, registry
from django_outbox.handlers.time_limits import call_within, too_slow
from django_outbox.messages import (
    ACCEPTED,
    MAX_ERROR_LENGTH,
    REDELIVERED_AT,
    Message,
    Outcome,
    OutcomeKind,
    rejected,
    retry_later,
)
from django_outbox.models import OutboxMessage
from django_outbox.retry import RetryEntry
from django_outbox.stores import get_store
from django_outbox.tracing import attribution, traced_handling, tracers
from django_outbox.utils.text import counted, describe, raise_interrupt

__all__ = ["HandlersPublisher"]

UNHANDLED = ("fail", "skip")

NO_HANDLER = "outbox.no_handler"
"""The `error_class` of a message that has no handler."""

INVALID_EVENT = "outbox.invalid_event"
"""The `error_class` of a message whose payload does not match the class of its event, so that no handler was called."""

NOT_RUN = "outbox.not_run"
"""The `error_class` of a message if its handler returned a generator, so that none of its code has run."""

HANDLER_HEADER = "outbox-handler"
"""The header of a handler's own message: the name of the handler, and the fields of the original that differ."""

ORIGINAL_FIELDS = ("name", "message_id", "key", "topic")

MAX_KEY_LENGTH = 255

_database: contextvars.ContextVar[str] = contextvars.ContextVar("outbox_database")


def current_database() -> str:
    """Return the alias of the database of the message that a handler is called with."""
    return _database.get()


class _Call(NamedTuple):
    began: float
    handler: str
    id: int
    schema: str


class HandlersPublisher(Publisher):
    """Calls the handler of each message, by default in a savepoint of the transaction of its claim.

    What a handler writes there is committed together with the new state of the message, or not at all. A message with
    several handlers is split into one for each.

    Args:
        alias: the publisher's name in the settings.
        transaction: if False, call each handler outside of a transaction, one message at a time, for as long as it
            takes. Its effects then happen at least once instead of exactly once.
        unhandled: what to do with a message without a handler for its type: "fail", or "skip" to count it as processed.
        time_limit: maximum number of seconds of a call, for handlers without their own limit; None for no limit.
        batch_seconds: seconds after which no further handler of a batch is called; the other messages go back
            unchanged.

    Attributes:
        in_transaction: the option `transaction`. If it is False, a lease keeps the message from other relays; all
            methods but `handle` are still called in the transaction that writes the message's new state.

    Raises:
        ImproperlyConfigured: an option is wrong.
    """

    has_broker = False
    batch_size = 20

    def __init__(
        self,
        alias: str,
        *,
        transaction: bool = True,
        unhandled: str = "fail",
        time_limit: float | None = None,
        batch_seconds: float = 1.0,
    ) -> None:
        super().__init__(alias)
        require_flag("transaction", transaction)
        require_choice("unhandled", unhandled, UNHANDLED)
        if time_limit is not None:
            require_seconds("time_limit", time_limit)
        require_seconds("batch_seconds", batch_seconds)
        self.in_transaction = transaction
        self.batch_seconds = batch_seconds
        self._skips_unhandled = unhandled == "skip"
        self._time_limit = time_limit
        self._calls: dict[int, _Call] = {}

    def describe(self) -> str:
        return counted(len([*registry]), "local handler")

    def describe_oldest_call(self, schema: str = "") -> dict[str, Any] | None:
        """Return the oldest call that has not returned: the `handler`, the message's `id`, and the `seconds` so far.

        Args:
            schema: the tenant's schema; by default all of them.
        """
        calls = [call for call in [*self._calls.values()] if schema in ("", call.schema)]
        if not calls:
            return None
        oldest = min(calls)
        return {"handler": oldest.handler, "id": oldest.id, "seconds": round(time.monotonic() - oldest.began, 3)}

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Raise TypeError: messages are delivered one by one, by `handle`."""
        raise TypeError(f"the publisher {self.alias!r} delivers messages only in a relay, which calls `handle`")

    def handle(self, message: Message, using: str) -> Outcome:
        """Call the handler of a message, or split the message if its type has several; return the outcome.

        Unless it is `ACCEPTED`, the relay rolls back what was written in the transaction. If it raises, the message is
        deferred.
        """
        found, original = _find(message)
        if found is not None:
            outcome = self._call(found, original, using)
            if outcome is ACCEPTED and self.in_transaction and found.finisher is not None:
                found.finisher(original, using)
            return outcome
        if original is not message:
            return _no_handler(message, message.topic)
        if several := registry.for_type(message.type):
            split(message, several, publisher=self.alias, using=using)
            return ACCEPTED
        return ACCEPTED if self._skips_unhandled else _no_handler(message)

    def own_retry(self, message: Message) -> RetryEntry | None:
        """Return the retry policy of the handler of a message, which takes precedence over `RETRY`, if it has one."""
        found, _ = _find(message)
        return None if found is None else found.retry

    def record_success(self, message: Message, using: str) -> None:
        """Call the finisher of the handler of an accepted message, if it has one; not if `in_transaction`."""
        found, original = _find(message)
        if found is not None and found.finisher is not None:
            found.finisher(original, using)

    def handle_failed(self, message: Message, outcome: Outcome, using: str) -> Outcome:
        """Call the fallback of the handler in which a message failed, if there is one; return the final outcome."""
        found, original = _find(message)
        # A handler that was not run has refused nothing, and will be run after a deployment.
        if found is None or found.fallback_function is None or outcome.error_kind in (NOT_RUN, INVALID_EVENT):
            return outcome
        error = outcome.cause or RuntimeError(outcome.error)
        original = original._replace(attempts=message.attempts + 1)
        try:
            self._run(found, found.fallback_function, decode_message(original), original, error, using=using)
        except BaseException as second:
            raise_interrupt(second)
            both = f"{outcome.error}; then the fallback failed: {describe(second, MAX_ERROR_LENGTH)}"
            return rejected(both, error_class=outcome.error_kind, cause=second)
        return ACCEPTED

    def record_failure(self, message: Message, outcome: Outcome, *, final: bool, using: str) -> None:
        """Call the recorder of the handler in which an attempt was counted and not accepted, if there is one.

        Args:
            message: the message; its `attempts` do not count this one.
            final: whether the message fails; otherwise it is retried.
        """
        found, original = _find(message)
        if found is not None and found.recorder is not None:
            found.recorder(decode_message(original), original, outcome, final, using)

    def _call(self, found: AnyHandler, message: Message, using: str) -> Outcome:
        try:
            event = decode_message(message)
        except InvalidEvent as error:
            # Another attempt would fail in the same way. A newer version is retried, because this process may be the
            # older one of a deployment.
            return rejected(
                f"{describe(error, MAX_ERROR_LENGTH).rstrip('.')}. Correct the class or the message, and requeue it",
                error_class=INVALID_EVENT,
                cause=error,
            )
        try:
            returned = self._run(found, found.function, event, message, using=using)
        except Reject as error:
            return rejected(str(error) or describe(error), cause=error.__cause__ or error)
        except RetryLater as error:
            return retry_later(str(error) or describe(error), cause=error.__cause__ or error, retry_after=error.seconds)
        except NotRun as error:
            # Another attempt would return the same.
            return rejected(
                f"the handler {found.name} {error}. Write it as a function that does its work when it is called; then "
                "restart the relay and requeue the message",
                error_class=NOT_RUN,
            )
        return _read_outcome(found, returned)

    def _run(
        self, found: AnyHandler, function: Callable[..., Any], event: Any, message: Message, *error: Any, using: str
    ) -> Any:
        seconds = found.time_limit or self._time_limit
        with self._noting(found, message, using), traced_handling(message) if tracers else nullcontext():
            # What the function sets in its context, such as the active language, ends with it.
            context = contextvars.copy_context()
            context.run(_database.set, using)
            context.run(attribution.set, {**attribution.get(), "cause": message.message_id})
            call = partial(context.run, function, event, message, *error)
            with _keeping_context(context, using):
                if seconds is None:
                    return context.run(finish, call())
                began = time.monotonic()
                with _limited_statements(using, seconds):
                    # The call of a coroutine function takes no time.
                    returned = call() if inspect.iscoroutinefunction(function) else call_within(seconds, call)
                    return context.run(finish, returned, seconds, time.monotonic() - began)

    @contextmanager
    def _noting(self, found: AnyHandler, message: Message, using: str) -> Iterator[None]:
        thread, schema = threading.get_ident(), getattr(connections[using], "schema_name", "")
        self._calls[thread] = _Call(time.monotonic(), found.name, message.id, schema)
        try:
            yield
        finally:
            self._calls.pop(thread, None)


def decode_message(message: Message) -> Any:
    """Return the first argument of a handler: the event, or the decoded payload if the type has no class.

    Raises ValueError or UnknownEvent, as `decode_event` does.
    """
    if message.type not in events.types:
        return json.loads(message.payload)
    return decode_event(message.type, message.payload, message.headers)


def _find(message: Message) -> tuple[AnyHandler | None, Message]:
    """Return the handler that a message is for, and the message with the fields of the original.

    A handler's own message keeps its `id` and `attempts`.
    """
    origin = _read_header(message)
    if origin is None:
        return registry.direct.get(message.type), message
    found = registry.find(origin["name"])
    headers = {name: value for name, value in message.headers.items() if name != HANDLER_HEADER}
    original = message._replace(
        message_id=origin["message_id"], key=origin["key"], topic=origin["topic"], headers=headers
    )
    # The same name may belong to the handler of another type by now.
    return found if found is not None and message.type in found.types else None, original


def split(message: Message, handlers: Iterable[AnyHandler], *, publisher: str, using: str) -> None:
    """Insert a message for each handler, in the current transaction.

    They have the payload as it is in the database, and their own keys, so that handlers do not wait for each other.
    A message that was split before is not inserted again. If it is delivered again, so are the messages of its handlers
    that were processed before.
    """
    store = get_store(connections[using])
    made = [_make(message, each.name, publisher) for each in handlers]
    store.insert([{**new_row(each, each.text, store), "streamed": False} for each in made])
    requested = message.headers.get(REDELIVERED_AT)
    if isinstance(requested, str):
        rows = OutboxMessage.objects.using(using).filter(
            publisher=publisher, processed_at__lte=parse_datetime(requested)
        )
        rows.filter(message_id__in=[each.message_id for each in made]).deliver_again()


def _make(message: Message, name: str, publisher: str) -> NewMessage:
    origin = dict(zip(ORIGINAL_FIELDS, (name, message.message_id, message.key, message.topic), strict=True))
    text = message.payload.decode()
    return NewMessage(
        message_id=_id_for(name, message.message_id),
        type=message.type,
        topic=name,
        key=_key(name, message.key),
        payload=text,
        text=text,
        headers={**message.headers, HANDLER_HEADER: origin},
        publisher=publisher,
        occurred_at=message.occurred_at,
    )


def _key(name: str, key: str) -> str:
    if not key:
        return ""
    own = f"{name}:{key}"
    return own if len(own.encode()) <= MAX_KEY_LENGTH else f"{name}:{hashlib.sha256(key.encode()).hexdigest()}"


def _id_for(name: str, message_id: str) -> uuid.UUID:
    """Return the ID of a handler's own message: always the same, so that it cannot be inserted twice."""
    return uuid.uuid5(uuid.UUID(message_id), name)


def _read_header(message: Message) -> dict[str, str] | None:
    """Return the header of a handler's own message; None if `split` did not write the message."""
    origin: Any = message.headers.get(HANDLER_HEADER)
    if not isinstance(origin, dict) or not all(isinstance(origin.get(field), str) for field in ORIGINAL_FIELDS):
        return None
    try:
        expected = _id_for(origin["name"], origin["message_id"])
    except ValueError:
        return None
    return origin if message.message_id == str(expected) else None


@contextmanager
def _keeping_context(context: contextvars.Context, using: str) -> Iterator[None]:
    """Let the functions that are given to `transaction.on_commit` run in the context of the handler, and its trace."""
    connection = connections[using]
    first = len(connection.run_on_commit)
    yield

    def keep(hook: Callable[[], object]) -> Callable[[], Any]:
        return lambda: context.run(lambda: finish(hook()))

    found = connection.run_on_commit[first:]
    connection.run_on_commit[first:] = [(entry[0], keep(entry[1]), *entry[2:]) for entry in found]


@contextmanager
def _limited_statements(using: str, seconds: float) -> Iterator[None]:
    """Let the database cancel statements that take longer than the time limit."""
    store = get_store(connections[using])
    store.limit_statements(seconds)
    try:
        yield
    except BaseException:
        # In a transaction that was aborted, the rollback removes the limit.
        with suppress(Error):
            store.limit_statements(None)
        raise
    store.limit_statements(None)


def _no_handler(message: Message, name: str = "") -> Outcome:
    # Retried, because this may be the older process of a deployment.
    if name:
        return retry_later(
            f"there is no handler named {name!r}. Restore it, or name its successor "
            f"@handler({message.type!r}, name={name!r}); then restart the relay, and requeue the message if it has "
            "failed",
            error_class=NO_HANDLER,
        )
    return retry_later(
        f"there is no handler of the type {message.type!r}. Register one with @handler({message.type!r}) in the "
        "handlers.py of an installed app; then restart the relay, and requeue the message if it has failed",
        error_class=NO_HANDLER,
    )


def _read_outcome(found: AnyHandler, returned: object) -> Outcome:
    """Return the outcome that a handler returned; any other value means that it accepted the message."""
    remedy = "return one outcome: retry_later(), set_aside() or rejected()"
    if isinstance(returned, list | tuple | set) and any(isinstance(each, Outcome) for each in returned):
        raise TypeError(f"the handler {found.name} returned several outcomes for one message; {remedy}")
    if not isinstance(returned, Outcome):
        return ACCEPTED
    if returned.kind in (OutcomeKind.UNANSWERED, OutcomeKind.BLOCKED):
        raise TypeError(f"the handler {found.name} returned an outcome {returned.kind.value!r}; {remedy}")
    return read_outcome(returned, f"the handler {found.name}")


class NotRun(TypeError):
    """A call returned a generator, so none of its code has run."""


def finish(returned: Any, seconds: float | None = None, passed: float = 0.0) -> Any:
    """Return the result of a call, and await it first if it is awaitable.

    asgiref awaits in another thread, and runs what is called there with `sync_to_async`, such as Django's ORM, in this
    one: on the same connection, and so in the same transaction.

    Raises:
        NotRun: the value is a generator.
        HandlerTimeout: the time was over.
    """
    if inspect.isawaitable(returned):
        returned = async_to_sync(_wait_within)(seconds, returned, passed)
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise NotRun("returned a generator, which nothing runs")
    return returned


async def _wait_within(seconds: float | None, returned: Awaitable[Any], passed: float) -> Any:
    began = time.monotonic() - passed
    try:
        return await asyncio.wait_for(_wait(returned), None if seconds is None else seconds - passed)
    except asyncio.TimeoutError:
        if seconds is None or time.monotonic() - began < seconds:
            # The handler itself has raised it.
            raise
        raise too_slow(seconds) from None


async def _wait(returned: Any) -> Any:
    # A coroutine may return another one, because an `await` is missing in it.
    while inspect.isawaitable(returned):
        returned = await returned
    return returned
