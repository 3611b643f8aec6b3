"""The messages of one call of `publish` on their way through a connection, and their outcomes so far."""

import time
from collections.abc import Callable, Sequence

from django_outbox.messages import Message, Outcome, rejected
from django_outbox.publishers.base import BatchRefused
from django_outbox.publishers.nats.encoding import Encoded, Unencodable
from django_outbox.publishers.pending import PendingOutcomes


class Batch(PendingOutcomes):
    """Messages that were submitted together; the submitting thread waits for their outcomes.

    Args:
        messages: the messages to send.
        encode: encodes a message. If it raises `Unencodable`, that message is rejected and the others are sent.

    Attributes:
        encoded: the messages for NATS; None for a message that is not sent.
        submitted_at: when the batch was submitted, by `time.monotonic()`.
        progress_at: when it was submitted, or a message of it was sent or got an outcome.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        super().__init__(len(messages))
        self.encoded: list[Encoded | None] = []
        self.submitted_at = self.progress_at = time.monotonic()
        self._refusal: BatchRefused | None = None
        for index, message in enumerate(messages):
            try:
                self.encoded.append(encode(message))
            except Unencodable as error:
                self.encoded.append(None)
                text = f"NATS cannot carry the message: {error}."
                self.set_outcome(index, rejected(text, error_class=f"nats.{error.error_class}"))

    def wait(self) -> list[Outcome]:
        """Wait until every message has an outcome, and return them.

        Raises:
            BatchRefused: the server ended the connection because of a message that it did not identify.
        """
        if self.missing:
            self._done.wait()
        if self._refusal is not None:
            raise self._refusal
        return [outcome for outcome in self.outcomes if outcome is not None]

    def refuse(self, error: str) -> None:
        """Record that one of the messages without an outcome made the server end the connection."""
        if self.missing == 1:
            self.set_missing(rejected(error, error_class="nats.refused"))
        elif self.missing:
            self._refusal = BatchRefused(error, self.outcomes, permanent=True, error_class="nats.refused")
            self._done.set()
