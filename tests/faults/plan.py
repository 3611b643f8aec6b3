"""What a run is to do: the options, and the kinds of messages."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEASE = 4.0
"""Seconds that a claim may stay open: short, so that a relay that stands still loses it within a fault."""

MAX_MESSAGE = 1_000_000
"""Bytes of a message above which the broker closes the channel: a little less than what `enqueue` takes."""

BATCH_SIZE = 200
"""Small, so that a batch is always on its way when something breaks."""


class Kind(str, enum.Enum):
    """What is to become of a message; the writers note it and the ledger holds it against what happened."""

    GOOD = "good"
    """Committed: must arrive."""
    UNROUTABLE = "unroutable"
    """Committed, to a topic that no queue is bound to: must fail."""
    REFUSED = "refused"
    """Committed, with headers for which RabbitMQ would close the channel: must fail."""
    TOO_LARGE = "too-large"
    """Committed, and beyond the broker's limit, for which it closes the channel: must fail, and the others must not."""
    ROLLED_BACK = "rolled-back"
    """Never committed: must never be seen."""


POISON = (Kind.UNROUTABLE, Kind.REFUSED, Kind.TOO_LARGE)
"""What deserves to fail."""


@dataclass(frozen=True)
class Plan:
    """The options of a run; the same seed makes the same messages and the same faults."""

    database: str = "postgresql"
    messages: int = 20_000
    keys: int = 200
    faults: int = 24
    seed: int = 7
    relays: int = 3
    workers: int = 2
    writers: int = 2
    batch_size: int = BATCH_SIZE
    minutes: float = 30.0
    kinds: tuple[str, ...] = ()
    """Only these kinds of faults; all that the database has by default."""
    poison: bool = True
    keep_logs: Path | None = None
    retention: float | None = None
    """Seconds for which processed messages are kept; None for ever."""
    wake_up: bool = False
    """Whether the writers wake the relays, where the database can."""

    @property
    def settings(self) -> dict[str, Any]:
        """The setting `OUTBOX` of the relays; the retention is in seconds."""
        return {
            "BATCH_SIZE": self.batch_size,
            "POLL_INTERVAL": 0.2,
            "LEASE": LEASE,
            "RETENTION": self.retention,
            "WAKE_UP": self.wake_up,
            # A queue that is full for a long time must not make a message fail that deserves to arrive.
            "RETRY": {"DELAY": 0.2, "FACTOR": 1.5, "MAX_DELAY": 3.0, "MAX_ATTEMPTS": 100},
        }
