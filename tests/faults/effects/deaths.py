"""Points at which a relay kills itself, as the kernel or the power supply may."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from django_outbox.db.transactions import Savepoint
from django_outbox.relay.handling.savepoints import Savepoints
from django_outbox.relay.sources import TableSource
from django_outbox.signals import phase_finished
from django_outbox.stores import Claim

POINTS = (
    "before the claim is read",
    "before the effect",
    "after the effect",
    "after the savepoint",
    "before the settlement",
    "after the settlement",
    "after the commit, in a hook",
    "after the commit",
)
"""The points in the order of a batch."""

_countdown: dict[str, int] = {}


def die_at(point: str, after: int) -> None:
    """Let this process die when it reaches a point for the given time, counted from 1."""
    _countdown.clear()
    _countdown[point] = after


def die(point: str) -> None:
    if point in _countdown:
        _countdown[point] -= 1
        if not _countdown[point]:
            os.kill(os.getpid(), signal.SIGKILL)


def arm() -> None:
    """Let the relays of this process reach the points."""

    def before(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            die(point)
            return function(*arguments, **options)

        return run

    def after(point: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **options: Any) -> Any:
            found = function(*arguments, **options)
            die(point)
            return found

        return run

    Savepoint.release = after("after the savepoint", Savepoint.release)  # type: ignore[method-assign]
    settle = before("before the settlement", TableSource.settle)
    TableSource.settle = after("after the settlement", settle)  # type: ignore[method-assign]
    committing = Savepoints.committing

    @contextmanager
    def opened(handled: Savepoints, claiming: AbstractContextManager[Claim]) -> Iterator[Claim]:
        with committing(handled, claiming) as claim:
            if claim.messages:
                die("before the claim is read")
            yield claim

    Savepoints.committing = opened  # type: ignore[method-assign, assignment]
    phase_finished.connect(_note, weak=False)


def _note(*, phase: str, **_: Any) -> None:
    if phase == "settle":
        die("after the commit")
