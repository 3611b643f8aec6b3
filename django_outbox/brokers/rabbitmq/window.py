"""The messages that the broker may deliver ahead: few at first, so that a reader that is killed returns few."""

from collections.abc import Sequence

FIRST_SIZE = 1
"""Number of messages that are delivered ahead before any was stored."""


class Window:
    """Decides how many messages are delivered ahead, and when they are settled with the broker.

    A quorum queue counts each return of a message, and drops or dead-letters it at the queue's delivery limit, 20 by
    default in RabbitMQ 4. A reader that is killed, or loses its connection, returns everything that was delivered to
    it. Therefore the first window is one message, and each window that was stored doubles the next one. A reader then
    never returns many more messages than it has stored, so a message that several readers return soon comes first.

    While windows grow, or if the number of messages is limited, settled messages must not make room for others. Such a
    window is settled as a whole, after the consumer was cancelled: nothing is then on its way from the queue.

    Args:
        max_size: size up to which windows grow. A window of that size is refilled, unless `max_messages` is given.
        max_messages: number of messages that will be settled; None for no limit.

    Attributes:
        size: the number of messages that may be unsettled; 0 if none may be delivered.
    """

    def __init__(self, max_size: int, max_messages: int | None) -> None:
        self._max_size = max_size
        self._left = max_messages
        self.restart()

    def restart(self) -> None:
        """Begin with the first window of a channel, which numbers its deliveries from 1."""
        self.size = self._limit(min(FIRST_SIZE, self._max_size))
        self._delivered = self._stored = self._settled = 0
        self._accepted = 0
        self._rejected: list[int] = []

    def note_delivery(self, tag: int) -> None:
        """Note a delivery."""
        self._delivered = tag

    def note_stored(self, accepted: int, rejected: Sequence[int]) -> None:
        """Note that deliveries can be settled: accepted up to this tag, unless it is 0, except for the rejected."""
        self._accepted = max(self._accepted, accepted)
        self._rejected += rejected
        self._stored = max(self._stored, accepted, *rejected)

    @property
    def is_refilled(self) -> bool:
        """Whether settled messages may make room for others."""
        return self.size == self._max_size and self._left is None

    @property
    def is_complete(self) -> bool:
        """Whether all messages of the window were delivered and stored."""
        return self._stored == self._delivered == self._settled + self.size

    def settle(self) -> tuple[int, list[int]]:
        """Return what to settle now: the tag up to which to accept deliveries, or 0, and the tags to reject."""
        accepted, rejected = self._accepted, self._rejected
        if self._left is not None:
            self._left = max(self._left - (self._stored - self._settled), 0)
        self._settled = self._stored
        self._accepted, self._rejected = 0, []
        return accepted, rejected

    def grow(self) -> None:
        """Begin the next window."""
        self.size = self._limit(min(2 * self.size, self._max_size))

    def _limit(self, size: int) -> int:
        return size if self._left is None else min(size, self._left)
