"""The messages of one call of `publish`: send them to their servers, and read an outcome for each."""

import time
from collections.abc import Iterator, Sequence

import redis

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.redis.connection import RedisConnection, RedisPool, Replies, encode_command
from django_outbox.brokers.redis.encoding import RedisEncoder
from django_outbox.brokers.redis.errors import LEAVE_SERVER, REDIRECTS, Lost, code_of, explain, outcome_of
from django_outbox.brokers.redis.options import Address, PublishingOptions
from django_outbox.brokers.redis.servers import NODE_UNAVAILABLE, NODE_WAIT, SINGLE, Servers
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind, rejected, set_aside, unanswered

MOVED_WAIT = 1.0
"""Seconds for which messages wait if another node of the cluster has their slot, or is taking it over."""

MAX_ASK_TIME = 1.0
"""Maximum number of seconds for which a server is asked whether it has enough replicas."""


def find_missing_replicas(options: PublishingOptions, connection: RedisConnection) -> str:
    if not options.replicas:
        return ""
    seconds = min(options.replica_timeout, MAX_ASK_TIME)
    command = "WAIT", options.replicas, int(seconds * 1000) or 1
    try:
        return _explain_missing(options, int(connection.execute(*command, timeout=seconds + options.stall_timeout)))
    except (redis.RedisError, OSError) as error:
        raise Lost(explain(error)) from error


def _explain_missing(options: PublishingOptions, confirmed: int) -> str:
    if confirmed >= options.replicas:
        return ""
    counts = f"{confirmed:,} of {options.replicas:,} replicas confirmed in time"
    return f"{counts}: check the replicas, or lower the option replicas"


class Pipeline:
    """Sends messages to a server, and then reads the replies, so that several servers can work at once.

    Args:
        deadline: when to give up, by `time.monotonic()`.
    """

    def __init__(
        self,
        server: Address,
        pool: RedisPool,
        options: PublishingOptions,
        deadline: float,
        indexes: Sequence[int],
        *,
        reason: str,
    ) -> None:
        self.server = server
        self.indexes = indexes
        self.reason = reason
        self.accepted: Sequence[int] = ()
        self.refused: dict[int, str] = {}
        self.leave = False
        self._pool = pool
        self._options = options
        self._deadline = deadline
        self._connection: RedisConnection | None = None
        self._replies = Replies()

    def connect(self, *, is_trial: bool) -> int:
        """Take a connection, unless it is too late for that. Return the maximum bytes of a payload.

        On trial, nothing is sent to a server without enough replicas, because it would keep a copy each time.
        """
        try:
            if time.monotonic() > self._deadline:
                raise Lost("other servers took too long to respond")
            self._connection = self._pool.take()
            if is_trial and (reason := find_missing_replicas(self._options, self._connection)):
                raise Lost(reason)
        except Lost as error:
            self._lose(str(error))
            return 0
        return self._connection.max_argument

    def send(self, commands: Sequence[bytes]) -> None:
        if self._connection is None or not commands:
            return
        options = self._options
        if options.replicas:
            seconds = min(options.replica_timeout, (self._deadline - time.monotonic()) / 2)
            wait = encode_command("WAIT", str(options.replicas), str(max(int(seconds * 1000), 1)))
            commands = [*commands, wait]
        try:
            self._connection.send(b"".join(commands), self._deadline, options.stall_timeout)
        except Lost as error:
            self._lose(str(error))

    def receive(self) -> None:
        connection, count, replicas = self._connection, len(self.indexes), self._options.replicas
        if connection is None:
            return
        stall_timeout = self._options.stall_timeout + (self._options.replica_timeout if replicas else 0)
        try:
            if count:
                connection.receive(self._replies, count + bool(replicas), self._deadline, stall_timeout)
        except Lost as error:
            self._lose(str(error))
        self._sort(count)
        if self._connection is None or self.leave:
            connection.close()
        else:
            self._pool.put(connection)

    def _sort(self, count: int) -> None:
        accepted, errors = self.indexes[: self._replies.count], self._replies.errors
        if errors:
            self.refused = {
                index: errors[position] for position, index in enumerate(self.indexes) if position in errors
            }
            accepted = [index for index in accepted if index not in self.refused]
            self.leave = self.leave or any(code_of(error) in LEAVE_SERVER for error in self.refused.values())
        if self._options.replicas and accepted and not self._confirmed(count):
            accepted = ()
        self.accepted = accepted

    def _confirmed(self, position: int) -> bool:
        """Return whether enough replicas have the messages, by the reply at this position."""
        if not self.reason and position in self._replies.errors:
            self.reason = f"WAIT is refused: {self._replies.errors[position]}"
            # The server may have become a replica.
            self.leave = True
        elif not self.reason:
            self.reason = _explain_missing(self._options, int(self._replies.last[1:]))
        return not self.reason

    def _lose(self, reason: str) -> None:
        self.reason = reason
        self.leave = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class RedisCall(EncodedCall[Message, bytes]):
    """Sends the messages of a call to their servers, in a pipeline for each server."""

    def __init__(
        self, messages: Sequence[Message], encoder: RedisEncoder, servers: Servers, options: PublishingOptions
    ) -> None:
        super().__init__(messages, encoder.encode, carrier="Redis", error_class="redis")
        self._encoder = encoder
        self._servers = servers
        self._options = options
        self._deadline = time.monotonic() + options.timeout
        self._suspensions = servers.suspensions
        self._trials: list[Address] = []

    def run(self) -> list[Outcome]:
        self._suspensions.update()
        try:
            self._exchange([*self._split(self.without_outcome())])
            return self._result()
        finally:
            for server in self._trials:
                self._suspensions.end_trial(server)

    def _split(self, indexes: Sequence[int]) -> Iterator[Pipeline]:
        stream_of = self._encoder.stream_of
        if indexes:
            for server, each, reason in self._servers.split(indexes, lambda index: stream_of(self.messages[index])):
                pool = self._servers.pool(server)
                yield Pipeline(server, pool, self._options, self._deadline, each, reason=reason)

    def _exchange(self, pipelines: Sequence[Pipeline]) -> None:
        sent: list[Pipeline] = []
        for pipeline in pipelines:
            if self._set_aside(pipeline):
                continue
            sent.append(pipeline)
            if not pipeline.reason:
                limit = pipeline.connect(is_trial=pipeline.server in self._suspensions)
                self._reject_larger(pipeline, limit)
                pipeline.send([self.encoded[index] for index in pipeline.indexes])
        for pipeline in sent:
            pipeline.receive()
            if pipeline.leave:
                self._servers.forget()
            self._take_outcomes(pipeline)

    def _set_aside(self, pipeline: Pipeline) -> bool:
        """Set messages aside if their node is suspended and not due for a trial. Return whether it is so."""
        if self._suspensions.begin_trial(pipeline.server):
            self._trials.append(pipeline.server)
            return False
        outcome = self._suspensions.outcome(pipeline.server)
        if outcome is None:
            return False
        self.set_all(pipeline.indexes, outcome)
        return True

    def _reject_larger(self, pipeline: Pipeline, limit: int) -> None:
        if pipeline.reason or max(len(self.messages[index].payload) for index in pipeline.indexes) <= limit:
            return
        error = f"the payload is beyond Redis's proto-max-bulk-len of {limit:,} bytes"
        for index in pipeline.indexes:
            if len(self.messages[index].payload) > limit:
                self.outcomes[index] = rejected(error, error_class="redis.too_large")
        pipeline.indexes = self.without_outcome(pipeline.indexes)

    def _take_outcomes(self, pipeline: Pipeline) -> None:
        self.set_all(pipeline.accepted, ACCEPTED)
        is_cluster = self._servers.options.cluster
        for index, error in pipeline.refused.items():
            if is_cluster and code_of(error) in REDIRECTS:
                self.outcomes[index] = set_aside(error, MOVED_WAIT, error_class="redis.moved")
            else:
                self.outcomes[index] = outcome_of(error)
        self.set_all(self.without_outcome(pipeline.indexes), unanswered(pipeline.reason))
        if is_cluster and pipeline.server != SINGLE:
            self._judge(pipeline)

    def _judge(self, pipeline: Pipeline) -> None:
        """Suspend a node that accepts nothing, and resume one that does."""
        found = (self.outcomes[index] for index in pipeline.indexes)
        errors = [outcome.error for outcome in found if outcome and outcome.kind is OutcomeKind.UNANSWERED]
        if not errors:
            self._suspensions.end(pipeline.server)
        elif not pipeline.accepted:
            self._servers.suspend(pipeline.server, errors[0])

    def _result(self) -> list[Outcome]:
        """Return the outcomes. If all nodes of a cluster accept nothing, it is an outage; otherwise, messages wait."""
        outcomes = self.complete()
        if not self._servers.options.cluster:
            return outcomes
        is_down = self._servers.is_down
        is_outage = is_down and ACCEPTED not in outcomes
        for index, outcome in enumerate(outcomes):
            if is_outage and outcome.error_class == NODE_UNAVAILABLE:
                outcomes[index] = unanswered(outcome.error)
            elif not is_down and outcome.kind is OutcomeKind.UNANSWERED:
                outcomes[index] = set_aside(outcome.error, NODE_WAIT, error_class=NODE_UNAVAILABLE)
        return outcomes
