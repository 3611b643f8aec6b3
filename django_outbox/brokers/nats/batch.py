"""The messages of one call of `publish` on their way through a connection, and their outcomes so far."""

import time
from collections.abc import Callable, Sequence

from django_outbox.brokers.call import PendingCall
from django_outbox.brokers.nats.encoding import Encoded
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import Message, Outcome, rejected


class Batch(PendingCall[Message, Encoded]):
    """Messages that were submitted together.

    Attributes:
        submitted_at: when the batch was submitted, by `time.monotonic()`.
        progress_at: when it was submitted, or a message of it was sent or got an outcome.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        super().__init__(messages, encode, carrier="NATS", error_class="nats")
        self.submitted_at = self.progress_at = time.monotonic()
        self._refusal: BatchRefused | None = None

    def result(self) -> list[Outcome]:
        """Wait until every message has an outcome, and return them.

        Raises:
            BatchRefused: the server ended the connection because of a message that it did not identify.
        """
        self.wait()
        if self._refusal is not None:
            raise self._refusal
        return self.complete()

    def refuse(self, error: str) -> None:
        """Record that one of the messages without an outcome made the server end the connection."""
        if self.missing == 1:
            self.set_missing(rejected(error, error_class="nats.refused"))
        elif self.missing:
            self._refusal = BatchRefused(error, self.outcomes, permanent=True, error_class="nats.refused")
            self.end()
