"""Undo what a test registers."""

from collections.abc import Iterator
from contextlib import contextmanager

from django_outbox.events.registry import registry as events
from django_outbox.handlers.registry import registry as handlers


@contextmanager
def isolated_handlers() -> Iterator[None]:
    """Forget the handlers that the block registers, at its end. The handlers of the project stay."""
    with handlers.isolated():
        yield


@contextmanager
def isolated_events() -> Iterator[None]:
    """Forget the events that the block registers, at its end. The events of the project stay."""
    with events.isolated():
        yield
