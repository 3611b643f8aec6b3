"""The messages of one call of `publish`: send them in one pipeline, and read an outcome for each."""

import time
from collections.abc import Sequence

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.redis.connection import RedisConnection, RedisPool, Replies
from django_outbox.brokers.redis.encoding import RedisEncoder
from django_outbox.brokers.redis.errors import Lost, outcome_of
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, rejected, unanswered


class RedisCall(EncodedCall[Message, bytes]):
    def __init__(self, messages: Sequence[Message], encoder: RedisEncoder, pool: RedisPool, timeout: float) -> None:
        super().__init__(messages, encoder.encode, carrier="Redis", error_class="redis")
        self._pool = pool
        self._deadline = time.monotonic() + timeout

    def run(self) -> list[Outcome]:
        reason = ""
        if self.encoded:
            try:
                reason = self._exchange(self._pool.take())
            except Lost as error:
                # Another server may be the right one now.
                self._pool.close()
                reason = str(error)
        return self.complete(unanswered(reason))

    def _exchange(self, connection: RedisConnection) -> str:
        """Send the messages, and take the outcomes. Return the reason why messages have none."""
        self._reject_larger(connection.max_argument)
        indexes = self.without_outcome(self.encoded)
        replies, reason = Replies(), ""
        try:
            connection.send(b"".join(map(self.encoded.__getitem__, indexes)), self._deadline)
            connection.receive(replies, len(indexes), self._deadline)
        except Lost as error:
            reason = str(error)
        self.set_all(indexes[: replies.count], ACCEPTED)
        refused = {indexes[position]: outcome_of(text) for position, text in replies.errors.items()}
        self.take(refused.keys(), refused.values())
        if reason or any(outcome.kind is OutcomeKind.UNANSWERED for outcome in refused.values()):
            # Another server may be the right one now.
            connection.close()
            self._pool.close()
        else:
            self._pool.put(connection)
        return reason

    def _reject_larger(self, limit: int) -> None:
        if max(map(len, self.encoded.values())) <= limit:
            return
        larger = [index for index in self.encoded if len(self.messages[index].payload) > limit]
        error = f"the payload is beyond Redis's proto-max-bulk-len of {limit:,} bytes"
        self.set_all(larger, rejected(error, error_class="redis.too_large"))
