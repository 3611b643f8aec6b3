"""Messages that were handed over together, what is known of each, and which confirms are still to come."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome, rejected
from django_outbox.publishers.rabbitmq_encoding import EncodedProperties, Unencodable


class Batch:
    """The messages of one call of `publish`, whose thread waits for their outcomes.

    From the moment it is handed over only the connection's thread changes it.

    Args:
        messages: what to send.
        encode: makes the properties of a message; one that it refuses is rejected, and the others go on.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], EncodedProperties]) -> None:
        self.messages = messages
        self.missing = len(messages)
        self.sent = 0
        self.answered_at = 0.0
        self.properties: list[EncodedProperties | None] = []
        self._done = threading.Event()
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._returned: dict[int, Outcome] = {}
        self._unreturned: dict[str, list[int]] = {}
        for index, message in enumerate(messages):
            try:
                self.properties.append(encode(message))
            except Unencodable as error:
                self.properties.append(None)
                self.answer(index, rejected(f"AMQP cannot carry the message: {error}."))

    def wait(self) -> list[Outcome]:
        """Wait until every message has its outcome, and return them in the order of the messages."""
        if self.missing:
            self._done.wait()
        return [outcome for outcome in self._outcomes if outcome is not None]

    def touch(self) -> None:
        """Begin to count the silence of the broker anew."""
        self.answered_at = time.monotonic()

    def answer(self, index: int, outcome: Outcome) -> None:
        """Note what became of a message; a later answer for the same one is ignored."""
        if self._outcomes[index] is None:
            self._outcomes[index] = outcome
            self.missing -= 1
            if not self.missing:
                self._done.set()

    def confirm(self, index: int, outcome: Outcome) -> None:
        """Note the broker's answer for a message; one that came back before is not accepted."""
        if self._returned and outcome is ACCEPTED:
            outcome = self._returned.get(index, ACCEPTED)
        self.answer(index, outcome)

    def answer_rest(self, outcome_of: Callable[[Message], Outcome]) -> None:
        """Give every message that has no outcome the one that `outcome_of` tells."""
        for index, message in enumerate(self.messages):
            if self._outcomes[index] is None:
                self.answer(index, outcome_of(message))

    def note_return(self, message_id: str, outcome: Outcome) -> bool:
        """Keep `outcome` for a message that came back, until its confirm comes; False where it is none of this batch.

        A return names no delivery tag. Should a message be in a batch twice, its returns come in the order of sending.
        """
        if not self._unreturned:
            for index, message in enumerate(self.messages):
                self._unreturned.setdefault(str(message.message_id), []).append(index)
        indexes = self._unreturned.get(message_id)
        if not indexes:
            return False
        self._returned[indexes.pop(0)] = outcome
        return True


class Unconfirmed:
    """What was sent over a channel and has no answer yet, by delivery tag.

    Confirms come in any order, for single tags and for all tags up to one: tags are looked up and never counted.
    """

    def __init__(self) -> None:
        self.batches: dict[Batch, None] = {}  # in the order of sending
        self.last_tag = 0
        self._lowest_tag = 1
        self._entries: dict[int, tuple[Batch, int]] = {}

    def add(self, batch: Batch, indexes: Iterable[int]) -> None:
        """Note that these messages of a batch have just been sent."""
        tag = self.last_tag
        for index in indexes:
            tag += 1
            self._entries[tag] = batch, index
        if tag > self.last_tag:
            self.last_tag = tag
            self.batches[batch] = None
            batch.touch()

    def confirm(self, tag: int, outcome: Outcome, *, multiple: bool) -> None:
        """Settle the message with this tag, or with `multiple` all up to it that have no answer yet."""
        tags = range(tag, tag + 1)
        if multiple:
            tags = range(self._lowest_tag, tag + 1)
            self._lowest_tag = max(self._lowest_tag, tag + 1)
        answered = set()
        for each in tags:
            entry = self._entries.pop(each, None)
            if entry is not None:
                batch, index = entry
                batch.confirm(index, outcome)
                answered.add(batch)
        for batch in answered:
            batch.touch()
            if not batch.missing:
                self.batches.pop(batch, None)

    def note_return(self, message_id: str, outcome: Outcome) -> None:
        """Keep `outcome` for the message that came back: its confirm, which comes next, accepts it otherwise."""
        for batch in self.batches:
            if batch.note_return(message_id, outcome):
                return

    def touch(self) -> None:
        """Begin to count the silence of the broker anew, for every batch."""
        for batch in self.batches:
            batch.touch()

    def silence(self) -> float:
        """Return for how many seconds the broker has not answered for the batch that waits longest."""
        return time.monotonic() - min(batch.answered_at for batch in self.batches) if self.batches else 0.0
