"""The state that the readers of an inbox share, and its waits and limits."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from django_outbox.inbox.storing import Stored, TypeFilter, is_known_type
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
        healthy_time: how long a connection must have lasted for the attempts before it not to count.
    """

    broker_wait: Backoff = field(default=Backoff(delay=0.2, max_delay=5.0, jitter=1.0))
    hold_time: float = 60.0
    receive_time: float = 0.2
    backlog_interval: float = 1.0
    healthy_time: float = 60.0


LIMITS = InboxLimits()
"""The default limits of an inbox."""


@dataclass(frozen=True, slots=True)
class InboxTally:
    """The counts of messages so far.

    Args:
        known: received messages that were left out, because they are stored already or were handled.
        invalid: messages that could not be stored as they came.
        dropped: messages that were dropped because their type is unknown.
        rejected: messages that went to the broker's dead letters.
    """

    received: int = 0
    stored: int = 0
    known: int = 0
    invalid: int = 0
    dropped: int = 0
    rejected: int = 0

    def __sub__(self, other: "InboxTally") -> "InboxTally":
        return InboxTally(*(getattr(self, name) - getattr(other, name) for name in self.__dataclass_fields__))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, name):,} {name}" for name in self.__dataclass_fields__)


class InboxState(ServiceState):
    """The state that the readers of an inbox share. Thread-safe.

    Args:
        max_messages: stop when this many messages were received; None for no limit. Each reader also stores what it
            has received by then, because a broker may count each return of a message.

    Attributes:
        open_batches: the number of batches that are being stored.
    """

    limits: InboxLimits

    def __init__(
        self,
        using: str,
        aliases: Iterable[str],
        limits: InboxLimits,
        *,
        max_messages: int | None = None,
        is_known_type: TypeFilter = is_known_type,
    ) -> None:
        self.using = using
        self.limits = limits
        self.is_known_type = is_known_type
        self.outages = Outages()
        self.open_batches = 0
        self._max_messages = max_messages
        self._tallies = {alias: InboxTally() for alias in aliases}
        self._paused: set[str] = set()
        self._lock = threading.Lock()

    @property
    def tally(self) -> InboxTally:
        with self._lock:
            tallies = [*self._tallies.values()]
        return InboxTally(*(sum(getattr(each, name) for each in tallies) for name in InboxTally.__dataclass_fields__))

    @property
    def hindrance(self) -> str:
        if (found := super().hindrance) or not self._paused:
            return found
        return f"paused because of the backlog: {', '.join(self.paused)}"

    @property
    def paused(self) -> list[str]:
        """The aliases of the consumers that pause because of their backlog."""
        return sorted(self._paused)

    def tally_of(self, alias: str) -> InboxTally:
        return self._tallies[alias]

    def outage_of(self, alias: str) -> Outage | None:
        subject = name_consumer(alias)
        return next((outage for outage in self.outages.current if outage.subject == subject), None)

    def is_done(self) -> bool:
        """Return whether no further batch may begin."""
        return self.stopping or self.left == 0

    @property
    def left(self) -> int | None:
        """The number of messages that may still be received; None for no limit."""
        return None if self._max_messages is None else max(self._max_messages - self.tally.received, 0)

    def begin(self) -> None:
        with self._lock:
            self.open_batches += 1

    def end(self, alias: str, messages: int, stored: Stored | None) -> None:
        """End a batch; count its messages if they were stored and settled."""
        with self._lock:
            self.open_batches -= 1
            if stored is None:
                return
            before = self._tallies[alias]
            self._tallies[alias] = replace(
                before,
                received=before.received + messages,
                stored=before.stored + stored.messages,
                known=before.known + stored.known,
                invalid=before.invalid + stored.invalid,
                dropped=before.dropped + stored.dropped,
                rejected=before.rejected + len(stored.rejected),
            )

    def set_paused(self, alias: str, paused: bool) -> None:
        (self._paused.add if paused else self._paused.discard)(alias)


def name_consumer(alias: str) -> str:
    """Return the name of a consumer for the log."""
    return f"Consumer {alias!r}"
