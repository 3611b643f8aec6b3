"""Destinations that accept no messages are set aside for a while, so that messages for others are delivered."""

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from django_outbox.messages import Outcome, set_aside
from django_outbox.utils.logs import logger

K = TypeVar("K", bound=Hashable)

FIRST_WAIT = 1.0
"""Seconds for which a destination is first set aside; doubles after each failed trial."""

MAX_WAIT = 30.0
"""Maximum number of seconds between two trials."""

MIN_WAIT = 0.1
"""Minimum number of seconds for which a message is set aside."""

FORGET_AFTER = 600.0
"""Seconds without a message after which a destination is forgotten, because there may be any number of them."""

MAX_REPORTED = 10
"""Maximum number of destinations with their own log lines: routing keys that contain ids may be thousands."""


@dataclass(slots=True)
class Suspension:
    """The reason why a destination is set aside, and until when."""

    reason: str
    error_class: str
    since: float
    is_reported: bool
    wait: float = 0.0
    until: float = 0.0
    is_trying: bool = False


class Suspensions(Generic[K]):
    """The destinations that a publisher has set aside. Thread-safe.

    After each wait, one trial is let through. If it fails, the destination is set aside for twice as long as before.
    The log has the beginning and the end, each with the `owner`.
    """

    def __init__(
        self,
        owner: str,
        name: Callable[[K], str] = str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._owner = owner
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self.suspended: dict[K, Suspension] = {}

    def outcome(self, key: K) -> Outcome | None:
        """Return the outcome of messages for this destination while it is set aside; None if it is not."""
        with self._lock:
            found = self.suspended.get(key)
            return None if found is None else self._outcome(found)

    def begin(self, key: K, reason: str, error_class: str = "", *, least: float = 0.0) -> Outcome:
        """Set a destination aside, or again after a failed trial; return the outcome of its messages.

        Failures of messages that were on their way already do not lengthen the wait. It is at least `least` seconds, up
        to `MAX_WAIT`.
        """
        with self._lock:
            now = self._clock()
            found = self.suspended.get(key) or self._start(key, reason, error_class, now)
            if not found.wait or found.is_trying:
                found.wait = min(max(found.wait * 2 or FIRST_WAIT, least), MAX_WAIT)
                found.until = now + found.wait
            found.reason, found.error_class, found.is_trying = reason, error_class, False
            return self._outcome(found)

    def end(self, key: K) -> None:
        if key not in self.suspended:
            return
        with self._lock:
            found = self.suspended.pop(key, None)
            if found is not None and found.is_reported:
                logger.warning(
                    "%(subject)s: messages for %(destination)s are delivered again, after %(seconds).0f s",
                    event="destination.resumed",
                    subject=self._owner,
                    destination=self._name(key),
                    seconds=self._clock() - found.since,
                )

    def begin_trial(self, key: K) -> bool:
        """Return whether a message may try this destination now; if so, no other one may until the trial has ended.

        `begin`, `end` or `end_trial` ends it. The outcome of other messages in the meantime is a wait of `FIRST_WAIT`.
        """
        with self._lock:
            now = self._clock()
            found = self.suspended.get(key)
            if found is None or found.is_trying or now < found.until:
                return False
            found.is_trying, found.until = True, now + FIRST_WAIT
            return True

    def end_trial(self, key: K) -> None:
        """Allow another trial of this destination if one has had no result."""
        with self._lock:
            found = self.suspended.get(key)
            if found is not None and found.is_trying:
                found.is_trying, found.until = False, self._clock()

    def update(self) -> None:
        """Forget destinations without messages."""
        if not self.suspended:
            return
        with self._lock:
            now = self._clock()
            for key, found in list(self.suspended.items()):
                if now - found.until > FORGET_AFTER:
                    del self.suspended[key]

    def _outcome(self, found: Suspension) -> Outcome:
        seconds = max(found.until - self._clock(), MIN_WAIT)
        return set_aside(found.reason, seconds, error_class=found.error_class)

    def _start(self, key: K, reason: str, error_class: str, now: float) -> Suspension:
        is_reported = len(self.suspended) < MAX_REPORTED
        if is_reported:
            logger.warning(
                "%(subject)s: messages for %(destination)s are set aside, others are delivered: %(reason)s",
                event="destination.set_aside",
                subject=self._owner,
                destination=self._name(key),
                reason=reason,
            )
        found = self.suspended[key] = Suspension(reason, error_class, now, is_reported)
        return found
