"""The messages of one call of `publish`: send them in one pipeline, and read an outcome for each."""

import time
from collections.abc import Sequence

import redis

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.redis.connection import RedisConnection, RedisPool, Replies, encode_command
from django_outbox.brokers.redis.encoding import RedisEncoder
from django_outbox.brokers.redis.errors import LEAVE_SERVER, Lost, code_of, explain, outcome_of
from django_outbox.brokers.redis.options import PublishingOptions
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, unanswered

MAX_ASK_TIME = 1.0
"""Maximum number of seconds for which a server is asked whether it has enough replicas."""


def find_missing_replicas(options: PublishingOptions, connection: RedisConnection) -> str:
    if not options.replicas:
        return ""
    seconds = min(options.replica_timeout, MAX_ASK_TIME)
    command = "WAIT", options.replicas, int(seconds * 1000) or 1
    try:
        return _explain_missing(options, int(connection.execute(*command, timeout=seconds + options.timeout)))
    except (redis.RedisError, OSError) as error:
        raise Lost(explain(error)) from error


def _explain_missing(options: PublishingOptions, confirmed: int) -> str:
    if confirmed >= options.replicas:
        return ""
    counts = f"{confirmed:,} of {options.replicas:,} replicas confirmed in time"
    return f"{counts}: check the replicas, or lower the option replicas"


class RedisCall(EncodedCall[Message, bytes]):
    """Sends the messages of a call in one pipeline."""

    def __init__(
        self, messages: Sequence[Message], encoder: RedisEncoder, pool: RedisPool, options: PublishingOptions
    ) -> None:
        super().__init__(messages, encoder.encode, carrier="Redis", error_class="redis")
        self._pool = pool
        self._options = options
        self._deadline = time.monotonic() + options.timeout

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
            connection.send(self._encode_pipeline(indexes), self._deadline)
            connection.receive(replies, len(indexes) + bool(self._options.replicas), self._deadline)
        except Lost as error:
            reason = str(error)
        refused = {index: replies.errors[at] for at, index in enumerate(indexes) if at in replies.errors}
        accepted = [index for index in indexes[: replies.count] if index not in refused]
        if self._options.replicas and accepted:
            reason = reason or self._read_confirmations(replies, len(indexes))
            accepted = [] if reason else accepted
        if reason or any(code_of(text) in LEAVE_SERVER for text in refused.values()):
            connection.close()
            self._pool.close()
        else:
            self._pool.put(connection)
        self.set_all(accepted, ACCEPTED)
        for index, text in refused.items():
            self.outcomes[index] = outcome_of(text)
        return reason

    def _reject_larger(self, limit: int) -> None:
        messages = self.messages
        larger = [index for index in self.encoded if len(messages[index].payload) > limit]
        error = f"the payload is beyond Redis's proto-max-bulk-len of {limit:,} bytes"
        self.set_all(larger, rejected(error, error_class="redis.too_large"))

    def _encode_pipeline(self, indexes: Sequence[int]) -> bytes:
        commands = [self.encoded[index] for index in indexes]
        if self._options.replicas:
            seconds = min(self._options.replica_timeout, (self._deadline - time.monotonic()) / 2)
            commands.append(encode_command("WAIT", str(self._options.replicas), str(max(int(seconds * 1000), 1))))
        return b"".join(commands)

    def _read_confirmations(self, replies: Replies, position: int) -> str:
        """Return why too few replicas have the messages, by the reply at this position; empty if enough have them."""
        if position in replies.errors:
            # The server may have become a replica.
            return f"WAIT is refused: {replies.errors[position]}"
        return _explain_missing(self._options, int(replies.last[1:]))
