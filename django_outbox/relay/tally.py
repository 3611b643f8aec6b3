"""Counts of messages, by result."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of messages, by result.

    Args:
        claimed: all messages that were claimed.
        size: bytes of the claimed payloads.
        processed: accepted by the broker.
        failed: rejected, out of attempts or unreadable.
        retried: deferred; they will be retried.
        unanswered: returned as they were because of an outage.
        blocked: not published, because their type is paused or an earlier message of their key was not accepted.
        unreadable: rows that failed without having been published, because they are not messages.
        outage: the last reason given for unanswered messages.
        connected: whether the publisher could connect although there was nothing to publish.
    """

    claimed: int = 0
    size: int = 0
    processed: int = 0
    failed: int = 0
    retried: int = 0
    unanswered: int = 0
    blocked: int = 0
    unreadable: int = 0
    outage: str = ""
    connected: bool = False

    @property
    def answered(self) -> bool:
        """Whether the broker answered: for a message, or when the publisher connected."""
        return self.settled > self.unreadable or self.connected

    @property
    def settled(self) -> int:
        """The number of messages that were not returned as they were."""
        return self.processed + self.failed + self.retried

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.claimed + other.claimed,
            self.size + other.size,
            self.processed + other.processed,
            self.failed + other.failed,
            self.retried + other.retried,
            self.unanswered + other.unanswered,
            self.blocked + other.blocked,
            self.unreadable + other.unreadable,
            other.outage or self.outage,
        )
