"""A call of a task, whether it is sent directly, and whether this process is Celery beat.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery import Celery
from celery.signals import beat_init

_sends_directly: ContextVar[bool] = ContextVar("django_outbox.celery.sends_directly", default=False)

_is_beat = False


@beat_init.connect(weak=False)
def _note_beat(**_: Any) -> None:
    global _is_beat  # noqa: PLW0603 - it is a fact about the process
    _is_beat = True


def is_beat() -> bool:
    """Return whether this process is Celery beat, which would skip a run that cannot be stored."""
    return _is_beat


def sends_directly() -> bool:
    return _sends_directly.get()


@contextmanager
def sending_directly() -> Iterator[None]:
    """Send calls to the broker at once while the context is open."""
    token = _sends_directly.set(True)
    try:
        yield
    finally:
        _sends_directly.reset(token)


class TaskId(NamedTuple):
    text: str
    is_new: bool = False
    """Whether it was made for this call, so that no other call has it."""
    is_frozen: bool = False
    """Whether Celery has chosen it for a signature, such as a step of a chain or the body of a chord."""


@dataclass
class StoredCall:
    """A call, and where to store it."""

    app: Celery
    task_id: TaskId
    publisher: str
    using: str | None
    """The database alias; None for the one that the router chooses for writing."""
    due: datetime.datetime | None
    """The time until which the outbox keeps the message, if any."""
    is_database_chosen: bool = False
    """Whether the caller has chosen the database for this call."""
