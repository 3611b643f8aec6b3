"""Destinations for which RabbitMQ currently accepts no messages, such as a full queue or one without quorum."""

import time
from collections.abc import Callable, Iterable

from django_outbox.brokers.rabbitmq.batch import Batch
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.messages import Outcome

FORGET_AFTER = 600.0
"""Seconds without a message after which a destination is forgotten."""

ROUND_INTERVAL = 5.0
"""Minimum number of seconds between two rounds of trials of destinations that were set aside. A round may hold up the
messages of one batch for other destinations."""

MAX_TRUSTED = 10_000
"""Maximum number of destinations that are remembered as accepting messages."""


class Destinations(Suspensions[str]):
    """The destinations that a publisher has set aside, and those that it trusts. Thread-safe.

    Args:
        publisher_alias: the publisher's name in the settings, for the log.
        clock: returns the time in seconds.
    """

    def __init__(self, publisher_alias: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(f"Publisher {publisher_alias!r}", "'{}'".format, forget_after=FORGET_AFTER, clock=clock)
        self._trusted: set[str] = set()
        self._unconfirmed: dict[str, Batch] = {}
        self._next_round_at = 0.0

    def update(self) -> None:
        """Resume destinations whose trial was confirmed late, forget unused ones, and log those still set aside."""
        with self._lock:
            self._unconfirmed = {each: trial for each, trial in self._unconfirmed.items() if each in self}
            late = [each for each, trial in self._unconfirmed.items() if trial.is_first_accepted]
        for destination in late:
            self.end(destination)
        super().update()

    def set_aside(self, destination: str, reason: str, error_class: str, trial: Batch | None = None) -> Outcome:
        """Set a destination aside, and return the outcome of its messages.

        Args:
            destination: the routing key.
            reason: the error.
            error_class: a short name for this kind of error.
            trial: a message whose confirm has not arrived yet; if it arrives late, the destination is resumed.
        """
        outcome = self.begin(destination, reason, error_class)
        with self._lock:
            self._trusted.discard(destination)
            if trial is not None:
                self._unconfirmed[destination] = trial
        return outcome

    def trust(self, destinations: Iterable[str]) -> None:
        """Note destinations for which the broker has confirmed a message."""
        with self._lock:
            if len(self._trusted) > MAX_TRUSTED:
                self._trusted.clear()
            self._trusted.update(each for each in destinations if each not in self)

    def is_trusted(self, destination: str) -> bool:
        """Return whether messages for this destination can be sent with others; it must be tried before otherwise."""
        return destination in self._trusted

    def begin_round(self) -> bool:
        """Return whether destinations that were set aside may be tried now."""
        now = self._clock()
        with self._lock:
            if now < self._next_round_at or all(now < each.until for each in self._found.values()):
                return False
            self._next_round_at = now + ROUND_INTERVAL
            return True
