"""The plan of a run: its options, and the kinds of messages."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLAIM_TIMEOUT = 4.0
"""Seconds that a claim may stay open: short, so that a frozen relay loses it during a fault."""

MAX_MESSAGE = 1_000_000
"""Bytes of a message above which the broker closes the channel: a little less than the limit of `enqueue`."""

BATCH_SIZE = 200
"""Small, so that a batch is always in flight when something breaks."""

RELAYS, WORKERS, WRITERS = 3, 2, 4
"""Numbers of relays, of workers of each, and of processes that enqueue."""


class Kind(str, enum.Enum):
    """The expected fate of a message; the writers note it, and the ledger compares it with the actual one."""

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


TYPES = ("quorum.written", "classic.written")
"""Types of the messages: each has a queue of its own, and there is no order between two queues."""


def type_of(id: str, key: str) -> str:
    """Return the type of a message: the number of the key decides on it, or the id if it has no key."""
    return TYPES[int(key.partition("-")[2] or int(id, 16)) % 2]


def is_locked(key: str) -> bool:
    """Return whether writers lock a key, which they do if its number is even; it is `-` or blank for none."""
    number = key.partition("-")[2]
    return bool(number) and int(number) % 2 == 0


POISON = (Kind.UNROUTABLE, Kind.REFUSED, Kind.TOO_LARGE)
"""Kinds that must fail."""


@dataclass(frozen=True)
class Plan:
    """The options of a run; the same seed makes the same messages and the same faults."""

    database: str = "postgresql"
    broker: str = "rabbitmq"
    messages: int = 20_000
    keys: int = 200
    faults: int = 24
    seed: int = 7
    minutes: float = 30.0
    kinds: tuple[str, ...] = ()
    """Only these kinds of faults; by default all that the broker has."""
    unroutable: float = 0.0
    """Share of the messages that are unroutable, apart from those that every broker refuses."""
    keep_logs: Path | None = None
    failed_blocks_key: bool = False
    notify: bool = False
    """Whether the writers wake the relays, where the database can."""
    source: str = "table"
    """The publishers' `SOURCE`."""
    deduplicate: bool | None = None
    """Whether Redis or NATS drop what is sent again; None for their default."""

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "BATCH_SIZE": BATCH_SIZE,
            "POLL_INTERVAL": 0.2,
            "CLAIM_TIMEOUT": CLAIM_TIMEOUT,
            "RETENTION": None,
            "NOTIFY": self.notify,
            "FAILED_BLOCKS_KEY": self.failed_blocks_key,
            "DEAD_LETTER_PUBLISHER": "dead",
            # A queue that is full for a long time must not make a good message fail.
            "RETRY": {"DELAY": 0.2, "FACTOR": 1.5, "MAX_DELAY": 3.0, "MAX_ATTEMPTS": 100},
        }
