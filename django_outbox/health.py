"""What a relay knows of its publishers: their circuit breakers, told to the log and to the signal."""

import logging
import threading
import time
from collections.abc import Iterable

from django_outbox.breaker import Breaker, State
from django_outbox.delivery import Tally
from django_outbox.signals import breaker_changed

logger = logging.getLogger("django_outbox")


class Health:
    """Shared by all workers of a relay.

    Args:
        using: the database alias.
        publishers: the aliases of the publishers that are served.
    """

    def __init__(self, using: str, publishers: Iterable[str]) -> None:
        self._using = using
        self._breakers = {alias: Breaker() for alias in publishers}
        self._outages: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def outage(self) -> str:
        """Why the last batch of a publisher that is away could not be delivered; blank while all is well."""
        return next(iter(self._outages.copy().values()), "")

    def outage_of(self, alias: str) -> str:
        """Return the same of one publisher."""
        return self._outages.get(alias, "")

    def outages_of(self, alias: str) -> int:
        """Return how many outages there were in a row."""
        return self._breakers[alias].outages

    def seconds_until_trial(self, alias: str) -> float:
        """Return how long nothing may be sent to a publisher; 0 or less when it may."""
        return self._breakers[alias].open_until - time.monotonic()

    def allowed(self, alias: str, batch_size: int) -> int:
        """Return how many messages may be sent to a publisher now; 0 while it is away."""
        breaker = self._breakers[alias]
        with self._lock:
            before = breaker.state
            allowed = breaker.allow(time.monotonic(), batch_size)
        if breaker.state is not before:
            self._report(alias)
        return allowed

    def note(self, alias: str, tally: Tally) -> None:
        """Take in what became of a batch that was allowed."""
        breaker, seconds = self._breakers[alias], 0.0
        with self._lock:
            before = breaker.state
            if tally.outage:
                seconds = breaker.outage(time.monotonic(), delivered=tally.processed > 0)
                self._outages[alias] = tally.outage
            elif tally.claimed:
                breaker.answered()
            else:
                breaker.withdrawn()
            if breaker.state is State.CLOSED:
                self._outages.pop(alias, None)
        if breaker.state is not before:
            self._report(alias, tally.outage, seconds)

    def _report(self, alias: str, reason: str = "", seconds: float = 0.0) -> None:
        state = self._breakers[alias].state
        if state is State.OPEN:
            logger.warning("Publisher %r: %s. Circuit breaker open, next trial in %.1f s.", alias, reason, seconds)
        elif state is State.CLOSED:
            logger.warning("Publisher %r delivers again. Circuit breaker closed.", alias)
        # Django logs what a receiver raises.
        breaker_changed.send_robust(
            sender=None, using=self._using, publisher=alias, state=state.value, reason=reason, seconds=seconds
        )
