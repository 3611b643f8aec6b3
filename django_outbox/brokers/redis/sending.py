"""Send the messages of one call of `publish`, and read an outcome for each."""

import time
from collections.abc import Sequence

from django_outbox.brokers.call import Call
from django_outbox.brokers.redis.encoding import Encoder, encode_command
from django_outbox.brokers.redis.errors import REDIRECTS, code_of, outcome_of
from django_outbox.brokers.redis.link import Lost
from django_outbox.brokers.redis.links import Links
from django_outbox.brokers.redis.options import Address
from django_outbox.brokers.redis.pipeline import Guarantees, Pipeline, find_missing_replicas
from django_outbox.brokers.redis.replies import Replies
from django_outbox.brokers.redis.servers import NODE_UNAVAILABLE, NODE_WAIT, SINGLE, Servers
from django_outbox.messages import ACCEPTED, Message, Outcome, Verdict, rejected, set_aside, unanswered

MAX_ROUNDS = 5
"""Maximum number of times that a message is sent, as long as the nodes of a cluster redirect it."""


class Sending(Call[Message, bytes]):
    """Sends the messages of a call to their servers, in a pipeline for each.

    Args:
        messages: the messages.
        encoder: encodes them.
        servers: the servers.
        guarantees: when a message is accepted.
    """

    def __init__(self, messages: Sequence[Message], encoder: Encoder, servers: Servers, guarantees: Guarantees) -> None:
        super().__init__(messages, encoder.encode, carrier="Redis", error_class="redis")
        self._encoder = encoder
        self._servers = servers
        self._guarantees = guarantees
        self._deadline = time.monotonic() + guarantees.timeout
        self._redirects: dict[int, str] = {}
        self._asked: set[Address] = set()
        self._failed: dict[Address, Pipeline] = {}
        self._suspensions = servers.suspensions
        self._trials: list[Address] = []

    def run(self) -> list[Outcome]:
        """Send the messages, and return their outcomes."""
        self._suspensions.update()
        pipelines = self._split(self.unsettled())
        try:
            for _ in range(MAX_ROUNDS):
                self._exchange(pipelines)
                if not self._redirects:
                    break
                pipelines = self._redirect()
            return self._result()
        finally:
            for server in self._trials:
                self._suspensions.end_trial(server)

    def _split(self, indexes: Sequence[int]) -> list[Pipeline]:
        def stream_of(index: int) -> str:
            return self._encoder.stream_of(self.messages[index])

        return [Pipeline(*each) for each in self._servers.split(indexes, stream_of)] if indexes else []

    def _exchange(self, pipelines: Sequence[Pipeline]) -> None:
        """Send messages to each server, then read the replies, and set the outcomes."""
        self._redirects = {}
        sent: list[tuple[Pipeline, Links]] = []
        for pipeline in pipelines:
            links = self._servers.links(pipeline.server)
            if self._set_aside(pipeline):
                continue
            sent.append((pipeline, links))
            if not pipeline.reason:
                self._asked.add(pipeline.server)
                is_trial = pipeline.server in self._suspensions
                limit = pipeline.connect(links, self._guarantees, self._deadline, is_trial=is_trial)
                self._reject_larger(pipeline, limit)
                pipeline.send(self.encoded, self._guarantees, self._deadline)
        for pipeline, links in sent:
            pipeline.receive(links, self._guarantees, self._deadline)
            if pipeline.leave:
                self._servers.forget()
            self._take_outcomes(pipeline)
            if not pipeline.reason:
                self._suspensions.end(pipeline.server)
            elif not pipeline.accepted and pipeline.server != SINGLE:
                self._failed[pipeline.server] = pipeline

    def _set_aside(self, pipeline: Pipeline) -> bool:
        """Set messages aside if their node is suspended and not due for a trial. Return whether it is so."""
        if self._suspensions.begin_trial(pipeline.server):
            self._trials.append(pipeline.server)
            return False
        outcome = self._suspensions.outcome(pipeline.server)
        if outcome is None:
            return False
        for index in pipeline.indexes:
            self.outcomes[index] = outcome
        return True

    def _reject_larger(self, pipeline: Pipeline, limit: int) -> None:
        """Reject payloads of more bytes than the server accepts: it would close the connection."""
        if pipeline.reason or max(len(self.messages[index].payload) for index in pipeline.indexes) <= limit:
            return
        error = f"the payload is beyond Redis's proto-max-bulk-len of {limit:,} bytes"
        for index in pipeline.indexes:
            if len(self.messages[index].payload) > limit:
                self.outcomes[index] = rejected(error, error_class="redis.too_large")
        pipeline.indexes = self.unsettled(pipeline.indexes)

    def _take_outcomes(self, pipeline: Pipeline) -> None:
        for index in pipeline.accepted:
            self.outcomes[index] = ACCEPTED
        if len(pipeline.accepted) == len(pipeline.indexes):
            return
        for index, error in pipeline.refused.items():
            self.outcomes[index] = outcome_of(error)
            if self._servers.options.cluster and code_of(error) in REDIRECTS:
                self._redirects[index] = error
        lost = unanswered(pipeline.reason)
        for index in self.unsettled(pipeline.indexes):
            self.outcomes[index] = lost

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
        outcomes = self.complete()
        missing = [index for index, outcome in enumerate(outcomes) if outcome.verdict is Verdict.UNANSWERED]
        if not (missing and self._servers.options.cluster and (ACCEPTED in outcomes or self._another_accepts())):
            return outcomes
        for pipeline in self._failed.values():
            self._servers.suspend(pipeline.server, pipeline.reason, pipeline.waited)
        for index in missing:
            outcomes[index] = set_aside(outcomes[index].error, NODE_WAIT, error_class=NODE_UNAVAILABLE)
        return outcomes

    def _another_accepts(self) -> bool:
        """Return whether a server accepts messages that none of these messages was sent to."""
        try:
            others = list(self._servers.others(self._asked))
        except Lost:
            return False
        return any(is_accepting(self._servers, server, stream, self._guarantees) for server, stream in others)


def is_accepting(servers: Servers, server: Address, stream: str, guarantees: Guarantees) -> bool:
    """Return whether a server accepts messages.

    Args:
        servers: the servers.
        server: the one to ask.
        stream: a stream that it has; if it is blank, a server that responds counts as accepting.
        guarantees: when a message is accepted.
    """
    replies = Replies()
    deadline = time.monotonic() + guarantees.stall_timeout
    try:
        link = servers.connect(server)
        try:
            if stream:
                # Redis refuses the ID 0-0, but only if it would write otherwise: if it has memory, serves the slot, and
                # is no replica.
                link.send(encode_command("XADD", stream, "0-0", "-", "-"), deadline)
                link.receive(replies, 1, deadline)
            is_missing = find_missing_replicas(link, guarantees)
        finally:
            link.close()
    except Lost:
        return False
    refusal = replies.errors.get(0, "")
    return not is_missing and outcome_of(refusal).verdict is not Verdict.UNANSWERED
