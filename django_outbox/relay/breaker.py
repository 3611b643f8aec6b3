"""The circuit breaker: after an outage nothing is sent for a while, and then a small batch is tried.

A state machine without a clock and without threads: the time is an argument.

    closed --outage--> open --wait is over--> half-open --answered--> closed
                        ^                         |
                        +---------outage----------+
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from django_outbox.relay.limits import LIMITS, Limits


class State(enum.Enum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Permit(NamedTuple):
    """Permission to publish one batch; the caller returns it with the result.

    Args:
        size: maximum number of messages in the batch.
        opening: how often the breaker had opened before.
    """

    size: int
    opening: int


@dataclass(slots=True)
class Breaker:
    """Permits batches, and receives the result of each one.

    Every permit is returned once: by `answered`, `outage` or `withdrawn`. A permit from before the breaker last opened
    changes nothing: its batch met the same outage, or was published before it.

    Attributes:
        limits: how long it stays open, and how many messages it permits on trial.
        state: closed, open or half-open.
        outages: number of outages in a row during which nothing was delivered.
        open_until: when it stops being open, on the caller's clock, in seconds.
    """

    limits: Limits = LIMITS
    state: State = State.CLOSED
    outages: int = 0
    open_until: float = 0.0
    _openings: int = 0
    _on_trial: bool = False

    def admit(self, now: float, wanted: int) -> Permit | None:
        """Permit as many messages as wanted, or a few on trial, one trial at a time; None means wait.

        Args:
            now: the caller's clock, in seconds.
            wanted: number of messages that the caller would publish.
        """
        if self.state is State.OPEN and now >= self.open_until:
            self.state = State.HALF_OPEN
        if self.state is State.CLOSED:
            return Permit(wanted, self._openings)
        if self.state is State.OPEN or self._on_trial:
            return None
        self._on_trial = True
        return Permit(min(wanted, self.limits.trial_size), self._openings)

    def answered(self, permit: Permit) -> None:
        """Close: the broker answered for a message of the batch. Whatever the outcome is, the broker is available."""
        if permit.opening == self._openings:
            self.state = State.CLOSED
            self.outages = 0
            self._on_trial = False

    def outage(self, permit: Permit, now: float, *, delivered: bool, rand: Callable[[], float] = random.random) -> None:
        """Open, because the broker was unavailable, and permit the next trial after a wait.

        Args:
            permit: the batch's permit.
            now: the caller's clock, in seconds.
            delivered: whether a part of the batch was delivered: then outages are counted from 1 again.
            rand: a source of numbers from 0 to 1, for the jitter.
        """
        if permit.opening == self._openings:
            self._openings += 1
            self.outages = 1 if delivered else self.outages + 1
            self.state = State.OPEN
            self.open_until = now + self.limits.outage_wait.after(self.outages, rand=rand)
            self._on_trial = False

    def withdrawn(self, permit: Permit) -> None:
        """Take the permit back unchanged: the batch had no message for the broker."""
        if permit.opening == self._openings:
            self._on_trial = False
