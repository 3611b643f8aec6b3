"""Outages: each one is logged when it begins and when it ends, no matter how many attempts there are."""

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from django_outbox.logs import logger
from django_outbox.text import duration


@dataclass(frozen=True, slots=True)
class Outage:
    """A broker or a database that is unavailable.

    Args:
        subject: its name in the log: "Publisher 'default'".
        name: its shortest name: "RabbitMQ".
        since: when it began, by this machine's clock.
        began: when it began, on the monotonic clock.
        next_try: when it is tried again, on the monotonic clock.
    """

    subject: str
    name: str
    reason: str
    since: datetime.datetime
    began: float
    next_try: float


class Outages:
    """The outages in progress, by subject. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._current: dict[str, Outage] = {}
        self._lock = threading.Lock()

    @property
    def current(self) -> list[Outage]:
        # Workers ask after each batch, so the usual answer takes no lock.
        if not self._current:
            return []
        with self._lock:
            return sorted(self._current.values(), key=lambda outage: outage.began)

    def note(self, subject: str, reason: str, seconds: float, *, name: str = "") -> None:
        """Note a failed attempt, `seconds` before the next one. The first one of an outage is logged."""
        now = self._clock()
        with self._lock:
            before = self._current.get(subject)
            if before is None:
                since = datetime.datetime.now(datetime.timezone.utc)
                self._current[subject] = Outage(subject, name or subject, reason, since, now, now + seconds)
            else:
                self._current[subject] = replace(before, reason=reason, next_try=now + seconds)
        if before is None:
            logger.warning(
                "%s is unavailable: %s. Trying again until it responds.",
                subject,
                reason.rstrip("."),
                event="outage.began",
                subject=subject,
                reason=reason,
            )

    def end(self, subject: str) -> None:
        """Note that it responds, which is logged if it was unavailable."""
        if subject not in self._current:
            return
        with self._lock:
            outage = self._current.pop(subject, None)
        if outage is not None:
            logger.warning(
                "%s is available again after %s.",
                subject,
                duration(self._clock() - outage.began),
                event="outage.ended",
                subject=subject,
                seconds=self._clock() - outage.began,
            )

    def remind(self) -> None:
        now = self._clock()
        for outage in self.current:
            logger.warning(
                "%s has been unavailable for %s: %s",
                outage.subject,
                duration(now - outage.began),
                outage.reason,
                event="outage.lasts",
                subject=outage.subject,
                seconds=now - outage.began,
                reason=outage.reason,
            )
