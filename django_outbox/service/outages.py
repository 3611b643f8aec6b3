"""Outages: each is logged when it begins, when it ends and once a minute, no matter how many attempts there are."""

import datetime
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from django_outbox.retry import Backoff
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, duration


@dataclass(frozen=True, slots=True)
class Outage:
    """A broker or a database that is unavailable, or a thread that crashed.

    Args:
        subject: its name in the log: "Publisher 'default'".
        name: its shortest name: "default: RabbitMQ"; the subject if it is empty.
        since: when it began, by this machine's clock.
        began: when it began, on the monotonic clock.
        crashes: how often one thread crashed in a row; 0 for a broker or a database.
        until: when a crash counts as over unless another one follows, on the monotonic clock.
    """

    subject: str
    reason: str
    name: str = ""
    since: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.timezone.utc))
    began: float = 0.0
    crashes: int = 0
    until: float = math.inf

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", self.subject)

    def __str__(self) -> str:
        return f"{self.subject} is {self.state}: {self.reason.rstrip('.')}"

    @property
    def state(self) -> str:
        return f"crashed {counted(self.crashes, 'time')}" if self.crashes else "unavailable"

    def continuing(self, before: "Outage | None") -> "Outage":
        """Return it with the beginning of an earlier one, if there is one."""
        return self if before is None else replace(self, since=before.since, began=before.began)


class Outages:
    """The outages in progress, by subject. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By subject and thread; several threads of a subject crash independently.
        self._current: dict[tuple[str, int], Outage] = {}
        self._lock = threading.Lock()

    @property
    def current(self) -> list[Outage]:
        """The outages in progress, the oldest first. For each subject, the thread with the most crashes is reported."""
        # Workers ask after each batch, so the usual answer takes no lock.
        if not self._current:
            return []
        now = self._clock()
        with self._lock:
            found = [outage for outage in self._current.values() if outage.until > now]
        worst = {outage.subject: outage for outage in sorted(found, key=lambda outage: outage.crashes)}
        return sorted(worst.values(), key=lambda outage: outage.began)

    def note(self, outage: Outage) -> None:
        """Note a failed attempt. The first one of an outage is logged."""
        now = self._clock()
        with self._lock:
            before = self._current.get((outage.subject, 0))
            found = replace(outage, began=now)
            self._current[outage.subject, 0] = found.continuing(before)
        if before is None:
            logger.warning(
                "%s. Trying again until it responds.",
                str(outage),
                event="outage.began",
                subject=outage.subject,
                reason=outage.reason,
            )

    def note_crash(self, subject: str, reason: str, wait: Backoff) -> float:
        """Note that the calling thread crashed, and return the seconds until it restarts.

        It has recovered once it has run for twice the longest wait.
        """
        now, key = self._clock(), (subject, threading.get_ident())
        with self._lock:
            before = self._current.get(key)
            if before is None or before.until <= now:
                before = Outage(subject, reason, began=now)
            crashes = before.crashes + 1
            seconds = wait.after(crashes)
            self._current[key] = replace(
                before,
                reason=reason,
                crashes=crashes,
                until=now + seconds + 2 * wait.max_delay,
            )
        return seconds

    def find(self, subject: str) -> Outage | None:
        return next((outage for outage in self.current if outage.subject == subject), None)

    def forget(self, subject: str) -> None:
        with self._lock:
            self._current.pop((subject, 0), None)

    def end(self, subject: str) -> None:
        """Note that it responds, which is logged if it was unavailable."""
        if (subject, 0) not in self._current:
            return
        with self._lock:
            outage = self._current.pop((subject, 0), None)
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
            if outage.crashes:
                # Each one is logged.
                continue
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
