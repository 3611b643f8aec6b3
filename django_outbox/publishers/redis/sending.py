"""Send the messages of one call of `publish`, and read an outcome for each."""

import time
from collections.abc import Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict, rejected, set_aside, unanswered
from django_outbox.publishers.redis.encoding import Encoder, Unencodable
from django_outbox.publishers.redis.errors import REDIRECTS, code_of, outcome_of
from django_outbox.publishers.redis.options import Address
from django_outbox.publishers.redis.pipeline import Guarantees, Pipeline
from django_outbox.publishers.redis.servers import Servers

MAX_ROUNDS = 5
"""Maximum number of times that a message is sent, as long as the nodes of a cluster redirect it."""

NODE_WAIT = 5.0
"""Seconds that messages wait for a node of a cluster, if other nodes accept messages."""


class Sending:
    """The messages of one call of `publish`, by their index in the call.

    Args:
        messages: the messages.
        encoder: encodes them. A message that cannot be encoded is rejected, and the others are sent.
        servers: the servers.
        guarantees: when a message is accepted.
    """

    def __init__(self, messages: Sequence[Message], encoder: Encoder, servers: Servers, guarantees: Guarantees) -> None:
        self._messages = messages
        self._encoder = encoder
        self._servers = servers
        self._guarantees = guarantees
        self._deadline = time.monotonic() + guarantees.timeout
        self._outcomes: list[Outcome | None] = [None] * len(messages)
        self._commands: list[bytes] = []
        self._redirects: dict[int, str] = {}
        for index, message in enumerate(messages):
            try:
                self._commands.append(encoder.encode(message))
            except Unencodable as error:
                self._commands.append(b"")
                text = f"Redis cannot carry the message: {error}."
                self._outcomes[index] = rejected(text, error_class="redis.unencodable")

    def run(self) -> list[Outcome]:
        """Send the messages, and return their outcomes."""
        pipelines = self._split([index for index, outcome in enumerate(self._outcomes) if outcome is None])
        for _ in range(MAX_ROUNDS):
            self._exchange(pipelines)
            if not self._redirects:
                break
            pipelines = self._redirect()
        return self._result()

    def _split(self, indexes: Sequence[int]) -> list[Pipeline]:
        def stream_of(index: int) -> str:
            return self._encoder.stream_of(self._messages[index])

        return [Pipeline(*each) for each in self._servers.split(indexes, stream_of)] if indexes else []

    def _exchange(self, pipelines: Sequence[Pipeline]) -> None:
        """Send messages to each server, then read the replies, and set the outcomes."""
        self._redirects = {}
        links = [self._servers.links(pipeline.server) for pipeline in pipelines]
        for pipeline, each in zip(pipelines, links, strict=True):
            if not pipeline.reason:
                self._reject_larger(pipeline, pipeline.connect(each, self._deadline))
                pipeline.send(self._commands, self._guarantees, self._deadline)
        for pipeline, each in zip(pipelines, links, strict=True):
            pipeline.receive(each, self._guarantees.replicas, self._deadline)
            if pipeline.leave:
                self._servers.forget()
            self._take_outcomes(pipeline)

    def _reject_larger(self, pipeline: Pipeline, limit: int) -> None:
        """Reject payloads of more bytes than the server accepts: it would close the connection."""
        if pipeline.reason or max(len(self._messages[index].payload) for index in pipeline.indexes) <= limit:
            return
        error = f"the payload is beyond Redis's proto-max-bulk-len of {limit:,} bytes"
        for index in pipeline.indexes:
            if len(self._messages[index].payload) > limit:
                self._outcomes[index] = rejected(error, error_class="redis.too_large")
        pipeline.indexes = [index for index in pipeline.indexes if self._outcomes[index] is None]

    def _take_outcomes(self, pipeline: Pipeline) -> None:
        for index in pipeline.accepted:
            self._outcomes[index] = ACCEPTED
        if len(pipeline.accepted) == len(pipeline.indexes):
            return
        for index, error in pipeline.refused.items():
            self._outcomes[index] = outcome_of(error)
            if self._servers.options.cluster and code_of(error) in REDIRECTS:
                self._redirects[index] = error
        lost = unanswered(pipeline.reason)
        for index in pipeline.indexes:
            self._outcomes[index] = self._outcomes[index] or lost

    def _redirect(self) -> list[Pipeline]:
        """Return the pipelines for messages that nodes of the cluster redirect to others."""
        asked: dict[Address, list[int]] = {}
        moved: list[int] = []
        for index, error in self._redirects.items():
            code, _, rest = error.partition(" ")
            if code == "ASK":
                # "ASK", the slot, and host:port.
                host, _, port = rest.rpartition(" ")[2].rpartition(":")
                asked.setdefault((host, int(port)), []).append(index)
            else:
                moved.append(index)
        return [*self._split(moved), *(Pipeline(server, indexes, asking=True) for server, indexes in asked.items())]

    def _result(self) -> list[Outcome]:
        """Return the outcomes; if some nodes of a cluster accept messages, those for the other nodes are set aside."""
        outcomes = [outcome for outcome in self._outcomes if outcome is not None]
        assert len(outcomes) == len(self._messages)
        if self._servers.options.cluster and ACCEPTED in outcomes:
            for index, outcome in enumerate(outcomes):
                if outcome.verdict is Verdict.UNANSWERED:
                    outcomes[index] = set_aside(outcome.error, NODE_WAIT, error_class="redis.node_unavailable")
        return outcomes
