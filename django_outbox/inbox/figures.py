"""The figures of an inbox on the live line."""

import time
from dataclasses import dataclass

from django_outbox.inbox.inbox import Inbox
from django_outbox.inbox.state import Tally
from django_outbox.management.figures import LiveFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class InboxFigures(LiveFigures):
    """The state of an inbox at one moment.

    Args:
        database: its alias.
        consumers: their aliases.
        paused: the aliases of those that pause because of the backlog.
        rate: received messages a second.
        tally: the counts of messages.
    """

    database: str
    consumers: tuple[str, ...]
    paused: tuple[str, ...]
    rate: float
    tally: Tally

    @property
    def served(self) -> str:
        noun = "consumer" if len(self.consumers) == 1 else "consumers"
        return f"database {self.database} · {noun} {', '.join(self.consumers)}"

    @property
    def texts(self) -> list[str]:
        paused = [f"paused by the backlog: {', '.join(self.paused)}"] if self.paused else []
        counts = [f"{name} {getattr(self.tally, name):,}" for name in Tally.__dataclass_fields__]
        return [*paused, f"{self.rate:,.0f} msg/s", *counts]


class InboxFiguresReader:
    """Reads the figures of an inbox, without a query.

    Args:
        inbox: the inbox.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._then, self._before = time.monotonic(), inbox.tally.received

    @property
    def using(self) -> str:
        return self._inbox.using

    def read(self) -> InboxFigures:
        """Return the figures now."""
        now, tally = time.monotonic(), self._inbox.tally
        rate = (tally.received - self._before) / max(now - self._then, 0.001)
        self._then, self._before = now, tally.received
        return InboxFigures(
            database=self._inbox.using,
            consumers=tuple(consumer.alias for consumer in self._inbox.consumers),
            paused=tuple(self._inbox.paused),
            rate=rate,
            tally=tally,
            outages=tuple(self._inbox.outages),
            failed=tally.invalid,
            now=now,
        )
