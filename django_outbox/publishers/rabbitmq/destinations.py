"""Destinations for which RabbitMQ currently accepts no messages, such as a full queue or one without quorum.

They are set aside, so that messages for other destinations are delivered. From time to time, one message tries each.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django_outbox.logs import logger
from django_outbox.messages import Outcome, set_aside
from django_outbox.publishers.rabbitmq.batch import Batch

FIRST_WAIT = 1.0
"""Seconds before a destination that was set aside is first tried again; doubles after each failed trial."""

MAX_WAIT = 30.0
"""Maximum number of seconds between two trials."""

MIN_WAIT = 0.1
"""Minimum number of seconds for which a message is set aside."""

FORGET_AFTER = 600.0
"""Seconds without a message after which a destination is forgotten."""

ROUND_INTERVAL = 5.0
"""Minimum number of seconds between two rounds of trials of destinations that were set aside. A round may hold up the
messages of one batch for other destinations."""

MAX_TRUSTED = 10_000
"""Maximum number of destinations that are remembered as accepting messages."""

REPORT_INTERVAL = 60.0
"""Seconds between two log lines about destinations that stay set aside."""

MAX_REPORTED = 10
"""Maximum number of destinations with their own log lines: routing keys that contain ids may be thousands."""


@dataclass(slots=True)
class Suspension:
    """The reason why a destination is set aside, and until when.

    `trial` is a message whose confirm has not arrived yet.
    """

    reason: str
    error_class: str
    since: float
    wait: float
    until: float
    is_reported: bool
    is_trying: bool = False
    trial: Batch | None = None


class Destinations:
    """The destinations that a publisher has set aside. Thread-safe.

    Args:
        publisher_alias: the publisher's name in the settings, for the log.
        clock: returns the time in seconds.
    """

    def __init__(self, publisher_alias: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._publisher_alias = publisher_alias
        self._clock = clock
        self._lock = threading.Lock()
        self._suspensions: dict[str, Suspension] = {}
        self._trusted: set[str] = set()
        self._next_round_at = 0.0
        self._next_report_at = 0.0

    def __bool__(self) -> bool:
        return bool(self._suspensions)

    def __contains__(self, destination: str) -> bool:
        return destination in self._suspensions

    def update(self) -> None:
        """Resume destinations whose trial was confirmed late, forget unused ones, and log those still set aside."""
        now = self._clock()
        with self._lock:
            for destination, suspension in list(self._suspensions.items()):
                trial = suspension.trial
                if trial is not None and trial.is_first_accepted:
                    self._resume(destination)
                elif now - suspension.until > FORGET_AFTER:
                    del self._suspensions[destination]
            if self._suspensions and now >= self._next_report_at:
                self._next_report_at = now + REPORT_INTERVAL
                self._report(now)

    def trust(self, destinations: Iterable[str]) -> None:
        """Note destinations for which the broker has confirmed a message."""
        with self._lock:
            if len(self._trusted) > MAX_TRUSTED:
                self._trusted.clear()
            self._trusted.update(each for each in destinations if each not in self._suspensions)

    def is_trusted(self, destination: str) -> bool:
        """Return whether messages for this destination can be sent with others; it must be tried before otherwise."""
        return destination in self._trusted

    def begin_round(self) -> bool:
        """Return whether destinations that were set aside may be tried now."""
        now = self._clock()
        with self._lock:
            if now < self._next_round_at or all(now < each.until for each in self._suspensions.values()):
                return False
            self._next_round_at = now + ROUND_INTERVAL
            return True

    def begin_trial(self, destination: str, seconds: float) -> bool:
        """Return whether a message may try this destination now; if so, no other thread tries it for `seconds`."""
        now = self._clock()
        with self._lock:
            suspension = self._suspensions.get(destination)
            if suspension is None or now < suspension.until:
                return False
            suspension.until = now + seconds
            suspension.is_trying = True
            return True

    def set_aside(self, destination: str, reason: str, error_class: str, trial: Batch | None = None) -> Outcome:
        """Set a destination aside, after a failed trial for twice as long as before; return its messages' outcome."""
        now = self._clock()
        with self._lock:
            self._trusted.discard(destination)
            suspension = self._suspensions.get(destination)
            if suspension is None:
                suspension = self._suspend(destination, reason, error_class, now)
            elif suspension.is_trying:
                suspension.wait = min(suspension.wait * 2, MAX_WAIT)
                suspension.until = now + suspension.wait
            suspension.reason, suspension.error_class, suspension.is_trying = reason, error_class, False
            suspension.trial = trial or suspension.trial
            return self._outcome(suspension)

    def resume(self, destination: str) -> None:
        """Send messages for this destination again, because the broker accepts them."""
        with self._lock:
            self._resume(destination)

    def outcome(self, destination: str) -> Outcome | None:
        """Return the outcome of messages for this destination while it is set aside; None if it is not."""
        with self._lock:
            suspension = self._suspensions.get(destination)
            return None if suspension is None else self._outcome(suspension)

    def _outcome(self, suspension: Suspension) -> Outcome:
        seconds = max(suspension.until - self._clock(), MIN_WAIT)
        return set_aside(suspension.reason, seconds, error_class=suspension.error_class)

    def _suspend(self, destination: str, reason: str, error_class: str, now: float) -> Suspension:
        is_reported = len(self._suspensions) < MAX_REPORTED
        if not self._suspensions:
            self._next_report_at = now + REPORT_INTERVAL
        if is_reported:
            text = "Publisher %r: set messages for '%s' aside; others are delivered: %s"
            logger.warning(text, self._publisher_alias, destination, reason)
        suspension = Suspension(reason, error_class, now, FIRST_WAIT, now + FIRST_WAIT, is_reported)
        self._suspensions[destination] = suspension
        return suspension

    def _resume(self, destination: str) -> None:
        suspension = self._suspensions.pop(destination, None)
        if suspension is not None and suspension.is_reported:
            logger.warning(
                "Publisher %r: RabbitMQ accepts messages for '%s' again, after %.0f s",
                self._publisher_alias,
                destination,
                self._clock() - suspension.since,
            )

    def _report(self, now: float) -> None:
        destination, oldest = min(self._suspensions.items(), key=lambda item: item[1].since)
        if now - oldest.since >= REPORT_INTERVAL:
            logger.warning(
                "Publisher %r: destinations set aside: %s; the oldest is '%s', for %.0f s: %s",
                self._publisher_alias,
                f"{len(self._suspensions):,}",
                destination,
                now - oldest.since,
                oldest.reason,
            )
