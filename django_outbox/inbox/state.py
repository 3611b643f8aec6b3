"""The state that the readers of an inbox share, and its waits and limits."""

import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from django_outbox.inbox.storing import InboxTally
from django_outbox.retry import Backoff
from django_outbox.service.outages import Outage
from django_outbox.service.state import ServiceLimits, ServiceState
from django_outbox.utils.rates import SPARING


@dataclass(frozen=True, slots=True)
class InboxLimits(ServiceLimits):
    """The waits in seconds and the limits of an inbox, in addition to `ServiceLimits`. Tests pass shorter ones.

    Args:
        broker_wait: waits before a consumer connects again.
        hold_time: how long messages are held while the database is unavailable. RabbitMQ closes a channel that holds
            one for 30 minutes.
        receive_time: how long a reader waits for messages before it looks whether it has to stop.
        backlog_interval: minimum time between two counts of the backlog.
        backlog_sparing: the pause after a count, as a multiple of the time that it took.
        proof_time: how long a connection must last before an outage is over.
        healthy_time: how long a connection must have lasted for the attempts before it not to count.
    """

    broker_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=5.0, jitter=1.0))
    hold_time: float = 60.0
    receive_time: float = 0.2
    backlog_interval: float = 1.0
    backlog_sparing: float = SPARING
    proof_time: float = 5.0
    healthy_time: float = 60.0


LIMITS = InboxLimits()
"""The default limits of an inbox."""


class InboxState:
    """The state that the readers of an inbox share. Thread-safe.

    Args:
        idle_exit: stop when no consumer has received anything for that many seconds; None to go on.
    """

    def __init__(
        self, using: str, aliases: Iterable[str], limits: InboxLimits, *, idle_exit: float | None = None
    ) -> None:
        self.service = ServiceState(using, limits)
        self.using = using
        self.limits = limits
        self.open_batches = 0
        self._idle_exit = idle_exit
        self._active_at = time.monotonic()
        self._tallies = {alias: InboxTally() for alias in aliases}
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    @property
    def tally(self) -> InboxTally:
        with self._lock:
            return sum(self._tallies.values(), InboxTally())

    def find_obstacle(self) -> str:
        return f"paused because of the backlog: {', '.join(self.paused)}" if self._paused else ""

    @property
    def paused(self) -> list[str]:
        return sorted(self._paused)

    def tally_of(self, alias: str) -> InboxTally:
        return self._tallies[alias]

    def outage_of(self, alias: str) -> Outage | None:
        """Return the crash of a consumer's reader, or else the outage of its broker."""
        return self.service.outages.find(name_reader(alias)) or self.service.outages.find(name_consumer(alias))

    def is_done(self) -> bool:
        return self.service.stopping or self._is_idle()

    def _is_idle(self) -> bool:
        if self._idle_exit is None or self.open_batches or self._paused or self.service.outages.current:
            return False
        return time.monotonic() - self._active_at > self._idle_exit

    def note_active(self) -> None:
        """Note that a consumer was opened, or has received something."""
        self._active_at = time.monotonic()

    def begin(self) -> None:
        with self._lock:
            self.open_batches += 1

    def end(self, alias: str, tally: InboxTally) -> None:
        """End a batch; the tally counts its messages if they were stored and settled."""
        self.note_active()
        with self._lock:
            self.open_batches -= 1
            self._tallies[alias] += tally

    def set_paused(self, alias: str, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(alias)


def name_consumer(alias: str) -> str:
    """Return the name of a consumer for the log."""
    return f"Consumer {alias!r}"


def name_reader(alias: str) -> str:
    return f"{name_consumer(alias)}: its reader"
