"""The options of a run."""

from dataclasses import dataclass
from pathlib import Path

MUTANTS = {"acknowledge-first": "AcknowledgingFirst", "forget-ids": "Forgetful"}
"""Consumers that break a promise, by the name of what they do wrong."""

QUEUE = "billing.orders"

RECEIVED = "received.journal"
"""The file, next to the logs, with the number of messages in each batch that an inbox received."""

BILLING = "billing"
"""The database of billing, on the same server as that of the shop."""


@dataclass(frozen=True)
class Plan:
    """The options; the same seed makes the same orders and the same kills."""

    database: str = "postgresql"
    orders: int = 5_000
    """Number of committed orders; a tenth as many are rolled back."""
    kills: int = 40
    kinds: tuple[str, ...] = ()
    """Only these kinds of kills; all by default."""
    seed: int = 7
    each: int = 2
    """Processes of each service: relays of the shop, inboxes, relays of billing."""
    writers: int = 2
    minutes: float = 30.0
    mutant: str = ""
    """What the inbox does wrong; blank for nothing."""
    keep_logs: Path | None = None

    @property
    def consumer(self) -> str:
        """The class of the inbox's consumer."""
        return MUTANTS.get(self.mutant, "CountingConsumer")
