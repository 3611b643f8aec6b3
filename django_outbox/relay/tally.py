"""Counts of messages by result, and the limit of how many a relay may claim."""

import threading
from collections.abc import Iterable
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

    @property
    def answered(self) -> bool:
        """Whether the broker answered for a message."""
        return self.settled > self.unreadable

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


class Budget:
    """Adds up tallies, and keeps the workers of a relay within `max_messages` together. Thread-safe.

    Args:
        publisher_aliases: the publishers that are served.
        max_messages: maximum number of messages to settle; None for no limit.
        max_bytes: maximum size of one batch.

    Attributes:
        tally: the messages of all publishers so far.
        open_batches: number of batches that workers have in hand.
    """

    def __init__(self, publisher_aliases: Iterable[str], max_messages: int | None, max_bytes: int) -> None:
        self.tally = Tally()
        self._tallies = {alias: Tally() for alias in publisher_aliases}
        self.open_batches = 0
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._reserved = 0
        self._average_size = 0
        self._lock = threading.Lock()

    @property
    def spent(self) -> bool:
        """Whether `max_messages` are settled."""
        return self._max_messages is not None and self.tally.settled >= self._max_messages

    def reserve(self, wanted: int) -> int:
        """Return how many messages to claim; 0 if other workers have reserved the rest of `max_messages`."""
        with self._lock:
            # Where messages are large, claiming no more rows than fit spares the database from reading a thousand
            # payloads to return ten.
            fitting = 2 * self._max_bytes // max(self._average_size, 1)
            limit = max(min(wanted, fitting), 1)
            if self._max_messages is not None:
                limit = max(0, min(limit, self._max_messages - self.tally.settled - self._reserved))
            self._reserved += limit
            self.open_batches += limit > 0
            return limit

    def release(self, publisher_alias: str, limit: int, tally: Tally) -> None:
        """Release what was reserved for a batch, and add its tally."""
        with self._lock:
            self._reserved -= limit
            self.open_batches -= 1
            self.tally += tally
            self._tallies[publisher_alias] += tally
            if tally.claimed:
                self._average_size = tally.size // tally.claimed

    def read(self) -> dict[str, Tally]:
        """Return the tallies so far, by publisher."""
        with self._lock:
            return self._tallies.copy()
