"""Messages that were handed over together, what is known of each, and which confirms are still to come."""

import threading
from collections.abc import Callable, Iterable, Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome, not_now, rejected
from django_outbox.publishers.base import BatchRefused
from django_outbox.publishers.rabbitmq_encoding import Encoded, Unencodable


class Batch:
    """The messages of one call of `publish`, whose thread waits for their outcomes.

    From the moment it is handed over only the connection's thread changes it.

    Args:
        messages: what to send.
        encode: encodes a message; one that it refuses is rejected, and the others go on.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        self.messages = messages
        self.missing = len(messages)
        self.sent = 0
        self._encoded: list[Encoded | None] = []
        self._done = threading.Event()
        self._refusal: BatchRefused | None = None
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._returned: dict[int, Outcome] = {}
        self._unreturned: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            try:
                self._encoded.append(encode(message))
            except Unencodable as error:
                self._encoded.append(None)
                text = f"AMQP cannot carry the message: {error}."
                self.answer(index, rejected(text, error_class="rabbitmq.unencodable"))

    def wait(self) -> list[Outcome]:
        """Wait until every message has its outcome, and return them in the order of the messages.

        Raises:
            BatchRefused: the broker refused one of them, and did not say which.
        """
        if self.missing:
            self._done.wait()
        if self._refusal is not None:
            raise self._refusal
        return [outcome for outcome in self._outcomes if outcome is not None]

    def answer(self, index: int, outcome: Outcome) -> None:
        """Note what became of a message; a later answer for the same one is ignored."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self.missing -= 1
            if not self.missing:
                self._done.set()

    def confirm(self, indexes: Sequence[int], outcome: Outcome) -> None:
        """Note the broker's answer for messages; one that came back before is not accepted."""
        if self._returned and outcome is ACCEPTED:
            for index in indexes:
                self.answer(index, self._returned.get(index, ACCEPTED))
        else:
            for index in indexes:
                self.answer(index, outcome)

    def answer_rest(self, outcome: Outcome) -> None:
        """Give every message that has no outcome this one."""
        for index in range(len(self.messages)):
            self.answer(index, outcome)

    def to_send(self, index: int) -> Encoded | None:
        """Return a message that has no outcome yet; None for the others."""
        return self._encoded[index] if self._outcomes[index] is None else None

    def reject_larger(self, limit: int) -> bool:
        """Reject what has no outcome and a payload beyond the broker's limit, in bytes; False if there is no such."""
        missing = self.missing
        error = f"the payload is beyond the broker's max_message_size of {limit:,} bytes"
        for index, message in enumerate(self.messages):
            if len(message.payload) > limit:
                self.answer(index, rejected(error, error_class="rabbitmq.too_large"))
        return self.missing < missing

    def refuse(self, error: str, cause: Exception, *, permanent: bool) -> None:
        """Note that the broker refused one of the messages that have no outcome, and read no further."""
        for index, outcome in self._returned.items():
            self.answer(index, outcome)
        if self.missing == 1:
            refused = rejected if permanent else not_now
            self.answer_rest(refused(error, error_class="rabbitmq.refused", cause=cause))
        elif self.missing:
            self._refusal = BatchRefused(error, self._outcomes, permanent=permanent, error_class="rabbitmq.refused")
            self._refusal.__cause__ = cause
            self._done.set()

    def note_return(self, message_id: str, outcome: Outcome) -> None:
        """Keep `outcome` for the message that came back: its confirm, which comes next, accepts it otherwise.

        A return names no delivery tag. Should a message be in a batch twice, its returns come in the order of sending.
        """
        if not self._unreturned:
            for index, message in enumerate(self.messages):
                self._unreturned.setdefault(message.message_id, []).append(index)
        indexes = self._unreturned.get(message_id)
        if indexes:
            self._returned[indexes.pop(0)] = outcome


class Unconfirmed:
    """What was sent over a channel and has no answer yet, by delivery tag.

    Confirms come in any order, for single tags and for all tags up to one: tags are looked up and never counted.
    """

    def __init__(self) -> None:
        self.last_tag = 0
        self._lowest_tag = 1
        self._indexes: dict[int, int] = {}

    def add(self, indexes: Iterable[int]) -> None:
        """Note that these messages have just been sent, by their index in the batch."""
        for index in indexes:
            self.last_tag += 1
            self._indexes[self.last_tag] = index

    def confirm(self, tag: int, *, multiple: bool) -> list[int]:
        """Forget the message with this tag, or with `multiple` all up to it, and return the indexes of those left."""
        tags = range(tag, tag + 1)
        if multiple:
            tags = range(self._lowest_tag, tag + 1)
            self._lowest_tag = max(self._lowest_tag, tag + 1)
        return [self._indexes.pop(each) for each in tags if each in self._indexes]
