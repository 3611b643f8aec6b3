"""The circuit breaker: after an outage the broker is left in peace for a while, and then tried with a small batch.

A state machine without a clock and without threads: it is told the time.

    closed --outage--> open --wait is over--> half-open --answered--> closed
                        ^                         |
                        +---------outage----------+
"""

import enum
import random
from collections.abc import Callable
from dataclasses import dataclass

from django_outbox.retry import RetryPolicy, backoff

OUTAGE_WAIT = RetryPolicy(delay=0.2, factor=2.0, max_delay=3.0, jitter=1.0)
"""How long the breaker stays open: from 0.2 seconds on, and never more than twice `max_delay`, so that the relay is
back within seconds of the broker's return. The jitter spreads the return of many relays over as long a time again."""

TRIAL_SIZE = 10
"""How many messages a half-open breaker lets through."""


class State(enum.Enum):
    """The states of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


@dataclass(slots=True)
class Breaker:
    """Says whether, and how many, messages may be published.

    Attributes:
        state: where it stands.
        outages: how many in a row in which nothing was delivered.
        open_until: until when it is open, on the caller's clock, in seconds.
    """

    state: State = State.CLOSED
    outages: int = 0
    open_until: float = 0.0
    _on_trial: bool = False

    def allow(self, now: float, wanted: int) -> int:
        """Return how many messages may be claimed: as many as wanted, a few for a trial, or 0 to wait.

        There is one trial at a time: whoever has been allowed it reports `answered`, `outage` or `withdrawn`.
        """
        if self.state is State.OPEN and now >= self.open_until:
            self.state = State.HALF_OPEN
        if self.state is State.CLOSED:
            return wanted
        if self.state is State.OPEN or self._on_trial:
            return 0
        self._on_trial = True
        return min(wanted, TRIAL_SIZE)

    def answered(self) -> None:
        """The broker answered for a batch: whatever it said, it is there."""
        if self.state is State.OPEN:
            # An answer from before the outage.
            return
        self.state = State.CLOSED
        self.outages = 0
        self._on_trial = False

    def outage(self, now: float, *, delivered: bool, rand: Callable[[], float] = random.random) -> float:
        """The broker was away or silent. Return in how many seconds the next trial may be.

        Args:
            now: the caller's clock, in seconds.
            delivered: whether a part of the batch was delivered: then the outages are counted anew.
            rand: a source of numbers from 0 to 1, for the jitter.
        """
        if self.state is not State.OPEN:
            self.outages = 1 if delivered else self.outages + 1
            self.state = State.OPEN
            self.open_until = now + backoff(self.outages, OUTAGE_WAIT, rand=rand)
            self._on_trial = False
        return max(0.0, self.open_until - now)

    def withdrawn(self) -> None:
        """There was nothing to try with."""
        self._on_trial = False
