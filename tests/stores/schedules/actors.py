"""The actors of a schedule, and the way a relay settles its batch."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from django_outbox.relay.sources import TableSource
from django_outbox.stores import Claim, Failed, Retried, Settlement
from django_outbox.stores.claiming import Cursor
from django_outbox.stores.timeline import Timeline
from tests.stores.schedules.model import Entry, Hand, Outcome

LATER = 300 * 86_400.0
"""Seconds of a delay that ends only when a schedule says so."""


@dataclass(eq=False)
class Writer:
    """A caller with its transaction."""

    name: str
    alias: str
    block: AbstractContextManager[Any] | None = None
    entries: list[Entry] = field(default_factory=list)
    slots: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Relay:
    """A relay with its open claim.

    Attributes:
        source: the source whose clock is that of the claim.
    """

    name: str
    alias: str
    cursor: Cursor
    source: TableSource
    context: AbstractContextManager[Claim] | None = None
    claim: Claim | None = None
    hand: Hand | None = None


@dataclass(eq=False)
class Operator:
    """An operator with a transaction in which messages are held."""

    alias: str
    block: AbstractContextManager[Any] | None = None
    entries: list[Entry] = field(default_factory=list)


class Death(BaseException):
    """Ends a claim whose process has died."""


def settlement(hand: Hand) -> Settlement:
    found = Settlement()
    for entry, outcome in hand.outcomes.items():
        if outcome is Outcome.ACCEPTED:
            found.processed.append(entry.id)
        elif outcome in {Outcome.REJECTED, Outcome.BLOCKING}:
            found.failed.append(Failed(entry.id, "refused", "test", outcome is Outcome.BLOCKING))
        elif outcome in {Outcome.RETRIED, Outcome.DEFERRED}:
            found.retried.append(Retried(entry.id, "busy", LATER if outcome is Outcome.DEFERRED else 0.0, "test"))
    return found


def new_cursor(kind: str = "") -> Cursor:
    """Return a cursor on which the time that a claim took has no influence.

    Args:
        kind: "by time" if keys are found by the time at which they become due, as if most of them waited; "few" if
            the last claim has read everything, so that the next one expects few messages.
    """

    def clock() -> float:
        return 0.0

    cursor = Cursor(after=0, clock=clock)
    if kind == "by time":
        cursor.timeline = Timeline(clock)
    if kind == "few":
        cursor.note_few([], [], steps=0, max_bytes=1)
    return cursor
