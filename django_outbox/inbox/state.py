"""The state that the readers of an inbox share, and its waits and limits."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from django_outbox.inbox.storing import InboxTally
from django_outbox.retry import Backoff
from django_outbox.service.outages import Outage, Outages
from django_outbox.service.state import ServiceLimits, ServiceState


@dataclass(frozen=True, slots=True)
class InboxLimits(ServiceLimits):
    """The waits in seconds and the limits of an inbox, in addition to `ServiceLimits`. Tests pass shorter ones.

    Args:
        broker_wait: waits before a consumer connects again.
        hold_time: how long messages are held while the database is unavailable. RabbitMQ closes a channel that holds
            one for 30 minutes.
        receive_time: how long a reader waits for messages before it looks whether it has to stop or to pause.
        backlog_interval: minimum time between two counts of the backlog.
        proof_time: how long a connection must last before an outage is over.
        healthy_time: how long a connection must have lasted for the attempts before it not to count.
        end_time: how long a drain may not know whether the source has ended before the consumer connects again.
    """

    broker_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=5.0, jitter=1.0))
    hold_time: float = 60.0
    receive_time: float = 0.2
    backlog_interval: float = 1.0
    proof_time: float = 5.0
    healthy_time: float = 60.0
    end_time: float = 15.0


LIMITS = InboxLimits()
"""The default limits of an inbox."""


class InboxState(ServiceState):
    """The state that the readers of an inbox share. Thread-safe.

    Args:
        max_messages: stop when this many messages were received; None for no limit. Each reader also stores what it
            has received by then, because a broker may count each return of a message.
    """

    limits: InboxLimits

    def __init__(
        self, using: str, aliases: Iterable[str], limits: InboxLimits, *, max_messages: int | None = None
    ) -> None:
        self.using = using
        self.limits = limits
        self.outages = Outages()
        self.open_batches = 0
        self._max_messages = max_messages
        self._tallies = {alias: InboxTally() for alias in aliases}
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    @property
    def tally(self) -> InboxTally:
        with self._lock:
            return sum(self._tallies.values(), InboxTally())

    @property
    def idle_reason(self) -> str:
        if (found := super().idle_reason) or not self._paused:
            return found
        return f"paused because of the backlog: {', '.join(self.paused)}"

    @property
    def paused(self) -> list[str]:
        return sorted(self._paused)

    def tally_of(self, alias: str) -> InboxTally:
        return self._tallies[alias]

    def outage_of(self, alias: str) -> Outage | None:
        """Return the crash of a consumer's reader, or else the outage of its broker."""
        return self.outages.find(name_reader(alias)) or self.outages.find(name_consumer(alias))

    def is_done(self) -> bool:
        return self.stopping or self.left == 0

    @property
    def left(self) -> int | None:
        return None if self._max_messages is None else max(self._max_messages - self.tally.received, 0)

    def begin(self) -> None:
        with self._lock:
            self.open_batches += 1

    def end(self, alias: str, tally: InboxTally) -> None:
        """End a batch; the tally counts its messages if they were stored and settled."""
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
