"""The relay's circuit breakers, one for each publisher. State changes are signalled; outages are noted."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from django_outbox.relay.breaker import Breaker, Permit, State
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.service.outages import Outages
from django_outbox.signals import breaker_changed, send


class Change(NamedTuple):
    """A change of a publisher's breaker.

    Args:
        publisher_alias: the publisher.
        state: the new state.
        reason: the reason of an outage.
        seconds: time until the next trial.
    """

    publisher_alias: str
    state: State
    reason: str = ""
    seconds: float = 0.0


class Breakers:
    """The circuit breakers of a relay's publishers. All workers of the relay share them.

    Args:
        using: the database alias.
        publisher_aliases: the publishers that are served.
        limits: how long a breaker stays open, and how many messages it permits on trial.
        outages: logs when a publisher becomes unavailable, and when it is available again.
        broker_names: the names of the publishers' brokers, by alias, as far as they are known.
    """

    def __init__(
        self,
        using: str,
        publisher_aliases: Iterable[str],
        limits: Limits = LIMITS,
        *,
        outages: Outages | None = None,
        broker_names: Mapping[str, str] | None = None,
    ) -> None:
        self._using = using
        self._outages = outages or Outages()
        self._broker_names = broker_names or {}
        self._breakers = {alias: Breaker(limits) for alias in publisher_aliases}
        self._reasons: dict[str, str] = {}
        self._outages_since: dict[str, float] = {}
        self._lock = threading.Lock()
        # Receivers of signals run without `_lock`, and get the changes in their order.
        self._changes: deque[Change] = deque()
        self._reporting = threading.Lock()

    @property
    def outage(self) -> str:
        """The reason why the last batch of an unavailable publisher was not delivered; blank if all are available."""
        return next(iter(self._reasons.copy().values()), "")

    def reason(self, publisher_alias: str) -> str:
        """Return why a publisher's last batch could not be delivered; blank if it is available."""
        return self._reasons.get(publisher_alias, "")

    def describe(self, publisher_alias: str) -> dict[str, Any]:
        """Return a publisher's `state`, the `reason` of its outage, and `since` when it lasts, as Unix time."""
        with self._lock:
            return {
                "state": self._breakers[publisher_alias].state.value,
                "reason": self._reasons.get(publisher_alias, ""),
                "since": self._outages_since.get(publisher_alias),
            }

    def count_outages(self, publisher_alias: str) -> int:
        """Return a publisher's number of outages in a row."""
        return self._breakers[publisher_alias].outages

    def seconds_until_trial(self, publisher_alias: str) -> float:
        """Return the seconds until a batch for a publisher may be tried; 0 or less if it may be tried now."""
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
        outage: str = "",
        delivered: bool = False,
        responds: bool = False,
    ) -> None:
        """Process the result of a batch that was permitted.

        Args:
            publisher_alias: the publisher.
            permit: the batch's permit.
            outage: why the broker was unavailable; blank if it was not, or if nothing was sent.
            delivered: whether a part of the batch was delivered.
            responds: whether the broker answered.
        """
        breaker, seconds = self._breakers[publisher_alias], 0.0
        with self._lock:
            before = breaker.state
            if outage:
                now = time.monotonic()
                breaker.outage(permit, now, delivered=delivered)
                seconds = breaker.open_until - now
            elif responds:
                breaker.answered(permit)
            else:
                breaker.withdrawn(permit)
            after = breaker.state
            if after is State.CLOSED:
                self._reasons.pop(publisher_alias, None)
                self._outages_since.pop(publisher_alias, None)
            elif outage:
                self._reasons[publisher_alias] = outage
                self._outages_since.setdefault(publisher_alias, time.time())
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
        publisher_alias, state, reason, seconds = change
        subject = f"Publisher {publisher_alias!r}"
        if state is State.OPEN:
            self._outages.note(subject, reason, seconds, name=self._broker_names.get(publisher_alias, ""))
        elif state is State.CLOSED:
            self._outages.end(subject)
        send(
            breaker_changed,
            using=self._using,
            publisher=publisher_alias,
            state=state.value,
            reason=reason,
            seconds=seconds,
        )
