"""Whether a server takes messages: after an outage nothing is sent to it for a while, and then one message is tried."""

import threading
import time
from collections.abc import Callable

from django_outbox.logs import logger

FIRST_WAIT = 1.0
"""Seconds for which a server is first left alone; doubles after each failed trial."""

MAX_WAIT = 30.0
"""Maximum number of seconds between two trials, unless the server asks for more."""

MAX_ASKED_WAIT = 300.0
"""Maximum number of seconds for which a server is left alone because it asks for it."""

MIN_WAIT = 0.1
"""Minimum number of seconds for which a message is set aside."""

MAX_FAILURES = 2
"""Number of requests in a row without a response after which nothing more is sent. One may be to blame itself."""


REPORT_INTERVAL = 60.0
"""Minimum seconds between two log lines about a server that stays unavailable."""


class Availability:
    """The circuit breaker of one server. Thread-safe.

    Args:
        subject: what is set aside meanwhile, for the log; blank if the relay logs the outage itself.
        clock: returns the time in seconds.

    Attributes:
        reason: why it is suspended, or was last.
        is_known: whether the server has responded since the last failure.
    """

    def __init__(self, subject: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.reason = ""
        self.is_known = False
        self._subject = subject
        self._clock = clock
        self._lock = threading.Lock()
        self._failures = 0
        self._wait = 0.0
        self._until = 0.0
        self._is_suspended = False
        self._suspended_at = 0.0
        self._reported_at = 0.0
        self._is_asked = False
        self._is_trying = False

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is sent, except on trial."""
        return self._is_suspended

    @property
    def is_asked_to_wait(self) -> bool:
        """Whether the server itself asked for the pause that it is in."""
        return self._is_suspended and self._is_asked and self._clock() < self._until

    @property
    def seconds_left(self) -> float:
        """Seconds until the next trial."""
        return max(self._until - self._clock(), MIN_WAIT)

    def begin_trial(self) -> bool:
        """Return whether a message may be tried now; if so, no other one is until its result is noted."""
        with self._lock:
            if self._is_trying or self._clock() < self._until:
                return False
            self._is_trying = True
            return True

    def end_trial(self) -> None:
        """Let another message be tried, because the one that was has no result."""
        with self._lock:
            self._is_trying = False

    def note_response(self) -> None:
        """Note a response, which ends a suspension."""
        if self._failures or self._is_suspended or not self.is_known:
            with self._lock:
                if self._is_suspended and self._subject:
                    seconds = self._clock() - self._suspended_at
                    logger.warning("%s are delivered again, after %.0f s", self._subject, seconds)
                self._failures, self._wait = 0, 0.0
                self._is_suspended = self._is_asked = self._is_trying = False
                self.is_known = True

    def note_busy(self, reason: str, seconds: float | None) -> None:
        """Note that the server asks to wait, for some seconds or for an unknown time."""
        with self._lock:
            self.is_known = True
            self._suspend(reason, None if seconds is None else min(seconds, MAX_ASKED_WAIT))
            self._is_asked = True

    def note_failure(self, reason: str, *, sent: bool) -> None:
        """Note a request without a response, which suspends the server unless the request may be to blame.

        Args:
            reason: the error.
            sent: whether the server may have got the request.
        """
        with self._lock:
            self.is_known = False
            self.reason = reason
            self._failures += 1
            if not sent or self._failures >= MAX_FAILURES:
                self._suspend(reason, None)

    def suspend(self, reason: str, least: float = 0.0) -> None:
        """Send nothing for a while, because no request of a batch had a response.

        Args:
            reason: the error.
            least: minimum number of seconds, up to `MAX_WAIT`.
        """
        with self._lock:
            self._suspend(reason, None, least)

    def _suspend(self, reason: str, seconds: float | None, least: float = 0.0) -> None:
        self.reason = reason
        if not self._is_suspended or self._is_trying:
            self._wait = min(max(self._wait * 2 or FIRST_WAIT, least), MAX_WAIT)
            self._until = self._clock() + (self._wait if seconds is None else seconds)
            self._is_asked = False
        self._report(reason)
        self._is_suspended, self._is_trying = True, False

    def _report(self, reason: str) -> None:
        """Log that the server is suspended: when that begins, and then now and again."""
        now = self._clock()
        if not self._is_suspended:
            self._suspended_at = self._reported_at = now
            if self._subject:
                logger.warning("%s are set aside, others are delivered: %s", self._subject, reason)
        elif now - self._reported_at >= REPORT_INTERVAL:
            self._reported_at = now
            if self._subject:
                seconds = now - self._suspended_at
                logger.warning("%s have been set aside for %.0f s: %s", self._subject, seconds, reason)
