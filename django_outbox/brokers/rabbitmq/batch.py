"""The messages of one call of `publish` on their way through a connection, and their outcomes so far."""

from collections.abc import Callable, Sequence

from django_outbox.brokers.call import PendingCall
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.brokers.rabbitmq.encoding import Encoded
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later


class Batch(PendingCall[Message, Encoded]):
    """Messages that were submitted together.

    After `wait`, a message has no outcome if the broker refused one of them without identifying it (`refusal`), or
    responds, but did not confirm it (`stalled`).

    Attributes:
        sent: the number of messages, from the first on, that were passed to a channel.
        stalled: whether the broker responds, but does not confirm all messages.
        refusal: the broker's refusal of a message that it does not identify.
        nacked: whether the broker refused a message with basic.nack.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        super().__init__(messages, encode, carrier="AMQP", error_class="rabbitmq")
        self.sent = 0
        self.stalled = False
        self.refusal: BatchRefused | None = None
        self.nacked = False
        self._returned: dict[int, Outcome] = {}
        self._unreturned: dict[str, list[int]] = {}

    @property
    def is_clean(self) -> bool:
        """Whether every message has an outcome, and the broker nacked none."""
        return not (self.stalled or self.nacked or self.missing)

    def confirm(self, indexes: Sequence[int], outcome: Outcome) -> None:
        """Set the outcome of confirmed or nacked messages. A message that was returned before is not accepted."""
        if self._returned and outcome is ACCEPTED:
            for index in indexes:
                self.set_outcome(index, self._returned.get(index, ACCEPTED))
        else:
            self.nacked = self.nacked or outcome is not ACCEPTED
            for index in indexes:
                self.set_outcome(index, outcome)

    def reject_larger(self, limit: int) -> bool:
        """Reject messages without an outcome whose payload exceeds the broker's limit in bytes. False if none does."""
        missing = self.missing
        error = f"the payload is beyond the broker's max_message_size of {limit:,} bytes"
        for index, message in enumerate(self.messages):
            if len(message.payload) > limit:
                self.set_outcome(index, rejected(error, error_class="rabbitmq.too_large"))
        return self.missing < missing

    def stall(self) -> None:
        """Give up waiting: the broker responds, but does not confirm the messages without an outcome."""
        self._settle_returned()
        if self.missing:
            self.stalled = True
            self.end()

    def refuse(self, error: str, cause: Exception, *, permanent: bool) -> None:
        """Record that the broker refused one of the messages without an outcome, and read no further ones."""
        self._settle_returned()
        if self.missing == 1:
            refused = rejected if permanent else retry_later
            self.set_missing(refused(error, error_class="rabbitmq.refused", cause=cause))
        elif self.missing:
            self.refusal = BatchRefused(error, self.outcomes, permanent=permanent, error_class="rabbitmq.refused")
            self.refusal.__cause__ = cause
            self.end()

    def note_return(self, message_id: str, outcome: Outcome) -> None:
        """Keep the outcome of a returned message, because the confirm that follows would accept it.

        A return carries no delivery tag. If a message is in a batch twice, its returns arrive in the order of sending.
        """
        if not self._unreturned:
            for index, message in enumerate(self.messages):
                self._unreturned.setdefault(message.message_id, []).append(index)
        indexes = self._unreturned.get(message_id)
        if indexes:
            self._returned[indexes.pop(0)] = outcome

    def _settle_returned(self) -> None:
        for index, outcome in self._returned.items():
            self.set_outcome(index, outcome)
