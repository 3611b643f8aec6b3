"""The outcomes of messages that a connection's thread is sending, while another thread waits for them."""

import threading

from django_outbox.messages import Outcome


class PendingOutcomes:
    """The outcomes so far. Once the messages are submitted, only the connection's thread changes them.

    Args:
        count: the number of messages.

    Attributes:
        outcomes: one entry per message; None while there is no outcome.
        missing: the number of messages without an outcome.
    """

    def __init__(self, count: int) -> None:
        self.outcomes: list[Outcome | None] = [None] * count
        self.missing = count
        self._done = threading.Event()

    def set_outcome(self, index: int, outcome: Outcome) -> None:
        """Set the outcome of a message, unless it already has one."""
        if self.outcomes[index] is None:
            self.outcomes[index] = outcome
            self.missing -= 1
            if not self.missing:
                self._done.set()

    def set_missing(self, outcome: Outcome) -> None:
        """Set the outcome of every message that has none."""
        for index in range(len(self.outcomes)):
            self.set_outcome(index, outcome)
