"""What a call is made with and where: its ID, whether it is sent directly, and whether this process is Celery beat."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from celery.signals import beat_init

_sends_directly: ContextVar[bool] = ContextVar("django_outbox.celery.sends_directly", default=False)

_is_beat = False


class TaskId(NamedTuple):
    """The ID of a call.

    Attributes:
        text: the ID.
        is_new: whether it was made for this call, so that no other call has it.
        is_frozen: whether Celery has chosen it for a signature, such as a step of a chain or the body of a chord.
    """

    text: str
    is_new: bool = False
    is_frozen: bool = False


@beat_init.connect(weak=False)
def _note_beat(**_: Any) -> None:
    global _is_beat  # noqa: PLW0603 - it is a fact about the process
    _is_beat = True


def is_beat() -> bool:
    """Return whether this process is Celery beat, which would skip a run that cannot be stored."""
    return _is_beat


def sends_directly() -> bool:
    """Return whether calls are sent to the broker at once."""
    return _sends_directly.get()


@contextmanager
def sending_directly() -> Iterator[None]:
    """Send calls to the broker at once while the context is open."""
    token = _sends_directly.set(True)
    try:
        yield
    finally:
        _sends_directly.reset(token)
