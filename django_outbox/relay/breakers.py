"""Circuit breakers: after an outage nothing is sent for a while, and then a small batch is tried.

Messages that were published twice in a row and could not be settled are an outage of their publisher, too.

    closed --outage--> open --wait is over--> half-open --answered--> closed
                        ^                         |
                        +---------outage----------+

State changes are signalled; outages are noted.
"""

import enum
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from django_outbox.messages import Message
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.service.outages import Outage, Outages
from django_outbox.signals import breaker_changed, send
from django_outbox.utils.text import counted


class State(enum.Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Permit(NamedTuple):
    """Permission to publish one batch; the caller returns it with the result.

    Args:
        opening: how often the breaker had opened before.
        unsettled: number of batches in a row that could not be settled before.
    """

    size: int
    opening: int
    unsettled: int = 0


@dataclass(slots=True)
class Breaker:
    """Permits batches, and receives the result of each one: a state machine without a clock and without threads.

    Every permit is returned once: by `note_answer`, `note_outage`, `note_unsettled` or `withdraw`. A permit from before
    the breaker last opened changes no state: its batch met the same outage, or was published before it.

    Attributes:
        consecutive_outages: number of outages in a row during which nothing was delivered.
        unsettled: number of batches in a row that were published and could not be settled. Others between them do not
            count until each message of these is settled.
        was_withdrawn: whether a trial since the latest outage had no message for the broker.
    """

    limits: Limits = LIMITS
    state: State = State.CLOSED
    consecutive_outages: int = 0
    unsettled: int = 0
    open_until: float = 0.0
    outage: Outage | None = None
    _openings: int = 0
    is_on_trial: bool = False
    was_withdrawn: bool = False
    _unsettled_ids: set[int] = field(default_factory=set)
    _unsettled_at: float = 0.0

    def admit(self, now: float, wanted: int) -> Permit | None:
        """Permit as many messages as wanted, or a few on trial, one trial at a time; None means wait."""
        if self.state is State.OPEN and now >= self.open_until:
            self.state = State.HALF_OPEN
        if self.state is State.CLOSED:
            if self.unsettled and now - self._unsettled_at > self.limits.unsettled_memory:
                self.note_settled(self._unsettled_ids.copy())
            # A smaller batch takes less time, so it may stay within a time limit.
            return Permit(max(wanted >> self.unsettled, 1), self._openings, self.unsettled)
        if self.state is State.OPEN or self.is_on_trial:
            return None
        self.is_on_trial = True
        return Permit(min(wanted, self.limits.trial_size), self._openings, self.unsettled)

    def note_answer(self, permit: Permit) -> None:
        """Close, because the broker answered, for a message or to `prepare`: whatever its answer, it is available."""
        if permit.opening == self._openings:
            self.state = State.CLOSED
            self.consecutive_outages = 0
            self.is_on_trial = False

    def note_outage(
        self, permit: Permit, now: float, *, delivered: bool, rand: Callable[[], float] = random.random
    ) -> None:
        """Open, because the broker was unavailable, and permit the next trial after a wait.

        Args:
            delivered: whether a part of the batch was delivered: then outages are counted from 1 again.
        """
        if permit.opening == self._openings:
            self.consecutive_outages = 1 if delivered else self.consecutive_outages + 1
            self._open(now + self.limits.outage_wait.after(self.consecutive_outages, rand=rand))

    def note_unsettled(
        self, permit: Permit, now: float, ids: Collection[int], *, rand: Callable[[], float] = random.random
    ) -> bool:
        """Note that messages were published and could not be settled; return whether the breaker opens.

        The first time, the connection to the database may have been lost. Batches of several workers that meet the same
        loss count once.
        """
        is_next = permit.unsettled == self.unsettled or not self._unsettled_ids.isdisjoint(ids)
        self._unsettled_ids.update(ids)
        self._unsettled_at = now
        if is_next:
            self.unsettled += 1
            if self.unsettled > 1 and permit.opening == self._openings:
                # A drain does not wait for that.
                self.consecutive_outages = max(self.consecutive_outages + 1, self.limits.drain_patience)
                self._open(now + self.limits.unsettled_wait.after(self.unsettled - 1, rand=rand))
                return True
        self.withdraw(permit)
        return False

    def note_settled(self, ids: Collection[int]) -> None:
        self._unsettled_ids.difference_update(ids)
        if not self._unsettled_ids:
            self.unsettled = 0

    def _open(self, until: float) -> None:
        self._openings += 1
        self.state, self.open_until = State.OPEN, until
        self.is_on_trial = self.was_withdrawn = False

    def withdraw(self, permit: Permit) -> None:
        """Take the permit back unchanged, because the batch had no message for the broker."""
        if permit.opening == self._openings:
            self.is_on_trial, self.was_withdrawn = False, True


class Change(NamedTuple):
    publisher_alias: str
    state: State
    outage: Outage | None = None
    seconds: float = 0.0


class Breakers:
    """The circuit breakers of a relay's publishers, one each. All workers of the relay share them."""

    def __init__(
        self,
        using: str,
        publisher_aliases: Iterable[str],
        limits: Limits = LIMITS,
        *,
        outages: Outages | None = None,
    ) -> None:
        self._using = using
        self._outages = outages or Outages()
        self._breakers = {alias: Breaker(limits) for alias in publisher_aliases}
        self._lock = threading.Lock()
        # Receivers of signals run without `_lock`, and get the changes in their order.
        self._changes: deque[Change] = deque()
        self._reporting = threading.Lock()

    def find_outage(self, publisher_alias: str) -> Outage | None:
        return self._breakers[publisher_alias].outage

    def describe(self, publisher_alias: str) -> dict[str, Any]:
        """Return a publisher's `state`, and the `reason` of its outage and the Unix time `since` when it lasts."""
        breaker = self._breakers[publisher_alias]
        with self._lock:
            state, outage = breaker.state, breaker.outage
            if breaker.is_on_trial and not breaker.was_withdrawn:
                # Until the broker answers, it is as unavailable as before; an idle relay only looks for a message.
                state = State.OPEN
        return {
            "state": state.value,
            "reason": outage.reason if outage else "",
            "since": outage.since.timestamp() if outage else None,
        }

    def count_outages(self, publisher_alias: str) -> int:
        return self._breakers[publisher_alias].consecutive_outages

    def seconds_until_trial(self, publisher_alias: str) -> float:
        return self._breakers[publisher_alias].open_until - time.monotonic()

    def admit(self, publisher_alias: str, batch_size: int) -> Permit | None:
        """Permit a batch of at most `batch_size` messages to a publisher; None while it is unavailable."""
        breaker = self._breakers[publisher_alias]
        with self._lock:
            before = breaker.state
            permit = breaker.admit(time.monotonic(), batch_size)
            if breaker.state is not before:
                self._changes.append(Change(publisher_alias, breaker.state))
        self._report_changes()
        return permit

    def note(
        self,
        publisher_alias: str,
        permit: Permit,
        *,
        outage: Outage | None = None,
        delivered: bool = False,
        responds: bool = False,
        published: Sequence[Message] = (),
        unsettled: Outage | None = None,
    ) -> None:
        """Process the result of a batch that was permitted."""
        breaker, seconds = self._breakers[publisher_alias], 0.0
        with self._lock:
            before, now = breaker.state, time.monotonic()
            if breaker.unsettled and published and not unsettled:
                breaker.note_settled([message.id for message in published])
            if unsettled:
                if breaker.note_unsettled(permit, now, [message.id for message in published]):
                    count = counted(len(published), "published message")
                    text = f"{count} could not be settled, {breaker.unsettled} times in a row: {unsettled.reason}"
                    outage = replace(unsettled, reason=text)
                    seconds = breaker.open_until - now
            elif outage:
                breaker.note_outage(permit, now, delivered=delivered)
                seconds = breaker.open_until - now
            elif responds:
                breaker.note_answer(permit)
            else:
                breaker.withdraw(permit)
            after = breaker.state
            if after is State.CLOSED:
                breaker.outage = None
            elif outage:
                breaker.outage = outage.continuing(breaker.outage)
            if after is not before:
                self._changes.append(Change(publisher_alias, after, outage, seconds))
        self._report_changes()

    def _report_changes(self) -> None:
        # The thread that reports a change also reports the changes of other threads, so receivers block one thread.
        while self._changes and self._reporting.acquire(blocking=False):
            try:
                while self._changes:
                    self._report(self._changes.popleft())
            finally:
                self._reporting.release()

    def _report(self, change: Change) -> None:
        publisher_alias, state, outage, seconds = change
        if outage is not None:
            self._outages.note(outage)
        elif state is State.CLOSED:
            self._outages.end(name_publisher(publisher_alias))
        send(
            breaker_changed,
            using=self._using,
            publisher=publisher_alias,
            state=state.value,
            reason=outage.reason if outage else "",
            seconds=seconds,
        )


def name_publisher(publisher_alias: str) -> str:
    """Return the name of a publisher for the log."""
    return f"Publisher {publisher_alias!r}"
