"""The messages of one call of `publish`, and their outcomes."""

import time
from collections.abc import Callable, Sequence

from django_outbox.brokers.connection_thread import PendingCall
from django_outbox.brokers.nats.encoding import NatsMessage
from django_outbox.messages import Message, Outcome


class NatsCall(PendingCall[Message, NatsMessage]):
    """The messages of one call of `publish`.

    Attributes:
        submitted_at: when they were submitted, by `time.monotonic()`.
        progress_at: when they were submitted, or when one of them was sent or got an outcome.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], NatsMessage]) -> None:
        super().__init__(messages, encode, carrier="NATS", error_class="nats")
        self.submitted_at = self.progress_at = time.monotonic()

    def result(self) -> list[Outcome]:
        """Wait until every message has an outcome, and return them. Raises BatchRefused if one is to blame."""
        self.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.complete()
