"""Relations between messages: the headers of who and what caused them, and hooks for tracing libraries.

These add headers to new messages, and learn how messages were published.
No tracing library is imported here. Without one, a batch costs nothing, and a call of `enqueue` two function calls.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, TypeVar

from django_outbox.messages import Message, Outcome
from django_outbox.utils.logs import logger
from django_outbox.utils.rates import Allowance
from django_outbox.utils.text import describe, raise_interrupt

if TYPE_CHECKING:
    # A tracing library may be set up before models can be imported.
    from django_outbox.models import OutboxMessage

T = TypeVar("T")

LOG_INTERVAL = 60.0
"""Seconds between two log lines about tracing libraries that raise, because one that fails may fail at every call."""


attribution: ContextVar[Mapping[str, str]] = ContextVar("outbox_attribution", default=MappingProxyType({}))
"""The headers that everything gets that is enqueued in this context."""


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """A batch after its new state was committed.

    Args:
        began_at: when publishing began, in nanoseconds since 1970.
    """

    publisher_alias: str
    messaging_system: str
    name_destination: Callable[[Message], str]
    messages: Sequence[Message]
    outcomes: Sequence[Outcome]
    failed: frozenset[int]
    began_at: int
    ended_at: int


class Tracer:
    """Connects a tracing library. Exceptions that it raises are logged; they affect neither callers nor deliveries."""

    def enqueueing(
        self, messages: "Sequence[OutboxMessage]", *, many: bool
    ) -> AbstractContextManager[Mapping[str, str]]:
        """Return a context manager around the writing of valid messages. It yields headers to add to each message.

        Headers that a message has already are never replaced.
        """
        return nullcontext({})

    def handling(self, message: Message) -> AbstractContextManager[object]:
        """Return a context manager around the call of a message's handler."""
        return nullcontext()

    def published(self, batch: PublishedBatch) -> None:
        """Record a batch. Called in the relay's thread, outside the transaction of the claim."""


tracers: list[Tracer] = []
"""The tracers of the libraries that were in use when `load_tracers` was called last, and those of tests."""

_waiting: dict[str, Callable[[], Tracer] | None] = {}
"""Functions that make the tracer of a library, by one of its modules; None after that module was imported."""
_lock = threading.Lock()


def add_tracer_when_imported(module: str, make: Callable[[], Tracer]) -> None:
    """Add a tracer as soon as something else has imported a module of its library.

    A process that never imports the library has no trace to continue, and need not spend the time of the import. Only
    the first call for a module counts: Django starts the app again when a test overrides `INSTALLED_APPS`.
    """
    _waiting.setdefault(module, make)


def traced(messages: "Sequence[OutboxMessage]", *, many: bool = False) -> AbstractContextManager[None]:
    """Return a context manager for the writing of messages, which gives them the headers of their traces.

    Args:
        messages: valid messages, not written yet. Their headers are replaced, not changed in place.
    """
    load_tracers()
    return _traced(messages, many) if tracers else nullcontext()


@contextmanager
def traced_handling(message: Message) -> Iterator[None]:
    with ExitStack() as stack:
        for tracer in tracers:
            _enter(stack, partial(tracer.handling, message))
        yield


def trace_published(batch: PublishedBatch) -> None:
    for tracer in tracers:
        try:
            tracer.published(batch)
        except BaseException as error:
            raise_interrupt(error)
            _report(error)


def load_tracers() -> None:
    """Make the tracers of libraries that something has imported since."""
    for module, make in tuple(_waiting.items()):
        if make is not None and sys.modules.get(module) is not None:
            _load(module)


def _load(module: str) -> None:
    with _lock:
        make = _waiting[module]
        if make is None:
            return
        try:
            tracers.append(make())
        except Exception as error:
            # An old or incomplete version of the library.
            logger.warning(
                "Messages are not traced with %s: %s",
                module,
                describe(error),
                event="tracing.unavailable",
                reason=describe(error),
            )
        _waiting[module] = None


@contextmanager
def _traced(messages: "Sequence[OutboxMessage]", many: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for tracer in tracers:
            try:
                headers = dict(_enter(stack, partial(tracer.enqueueing, messages, many=many)) or {})
            except Exception as error:
                _report(error)
                continue
            for message in messages if headers else ():
                message.headers = {**headers, **message.headers}
        yield


def _enter(stack: ExitStack, make: Callable[[], AbstractContextManager[T]]) -> T | None:
    try:
        manager = make()
        entered = manager.__enter__()
    except Exception as error:
        _report(error)
        return None
    stack.push(partial(_leave, manager))
    return entered


def _leave(
    manager: AbstractContextManager[object],
    kind: type[BaseException] | None,
    raised: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """Leave a tracer's context. Its own error is logged, and what was raised inside it passes through."""
    try:
        manager.__exit__(kind, raised, traceback)
    except Exception as error:
        if error is not raised:
            _report(error)


_reports = Allowance(1, LOG_INTERVAL)


def _report(error: BaseException) -> None:
    if _reports.take():
        logger.error(
            "Tracing failed; messages are delivered without it: %(reason)s",
            exc_info=error,
            event="tracing.failed",
            reason=describe(error),
        )
