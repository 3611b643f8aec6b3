"""The messages of one call of `publish`: divide them into requests, and turn responses into outcomes."""

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django_outbox.brokers.aws.encoding import AWSEncoder, Entry
from django_outbox.brokers.aws.errors import Kind, Problem, explain_code
from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import (
    ACCEPTED,
    Message,
    Outcome,
    rejected,
    retry_later,
    set_aside,
    unanswered,
)

MAX_ENTRIES = 10
"""Maximum number of messages of a request:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html"""

WAITS = {Kind.THROTTLED: 2.0, Kind.DENIED: 30.0, Kind.INTERNAL: 5.0, Kind.UNKNOWN: 5.0}
"""Seconds for which messages wait if their destination accepts none of them, but AWS responds."""

SLOW = "AWS responds too slowly: there was no time to send the message"


class AWSRequest(NamedTuple):
    """One batch request, with the indexes of its messages in the call of `publish` by the `Id` of their entries."""

    destination: str
    indexes: dict[str, int]
    entries: list[dict[str, Any]]


class AWSCall(EncodedCall[Message, Entry]):
    """Collects the outcomes of messages; the threads of a call share it.

    If all messages of the publisher have `one_destination`, and it accepts nothing, that is an outage; otherwise, only
    the messages for it wait. In an outage, no further request is sent.
    """

    def __init__(
        self, messages: Sequence[Message], encoder: AWSEncoder, carrier: str, *, one_destination: bool
    ) -> None:
        super().__init__(messages, encoder.encode, carrier=carrier, error_class="aws")
        self.outage = ""
        self.has_response = False
        # Destinations to which nothing more is sent in this call, and the outcome of their messages.
        self._closed: dict[str, Outcome] = {}
        self._one_destination = one_destination
        self._failing: dict[int, Problem] = {}
        self._refused: set[int] = set()
        self._refusal: Problem | None = None
        self._lock = threading.Lock()

    def requests(self, max_bytes: int) -> list[AWSRequest]:
        by_destination: dict[str, list[tuple[int, Entry]]] = {}
        for index, entry in self.encoded.items():
            by_destination.setdefault(entry.destination, []).append((index, entry))
        return [request for each in by_destination.items() for request in _divide(*each, max_bytes)]

    def skip(self, request: AWSRequest) -> bool:
        """Return whether not to send a request, because AWS, or its destination, accepts nothing now."""
        with self._lock:
            if self.outage:
                return True
            outcome = self._closed.get(request.destination)
            if outcome is not None:
                self.set_all(request.indexes.values(), outcome)
            return outcome is not None

    def take_response(self, request: AWSRequest, response: Mapping[str, Any]) -> None:
        left = {**request.indexes}
        with self._lock:
            self.has_response = True
            for each in response.get("Successful") or ():
                if each["Id"] in left:
                    self.outcomes[left.pop(each["Id"])] = ACCEPTED
            for each in response.get("Failed") or ():
                if each["Id"] in left:
                    self._take_problem(request.destination, [left.pop(each["Id"])], _read_failure(each))
            if left:
                missing = Problem(Kind.UNKNOWN, "AWS responded, but not for this message")
                self._take_problem(request.destination, left.values(), missing)

    def take_refusal(self, request: AWSRequest, problem: Problem) -> None:
        """Record that AWS refused a request as a whole, or that it got no response."""
        indexes = request.indexes.values()
        with self._lock:
            if problem.kind is Kind.INTERNAL:
                # Internal errors of a whole request are an outage.
                self.outage = self.outage or problem.text
            elif problem.kind in (Kind.CONTENT, Kind.UNKNOWN) and len(indexes) > 1:
                self.has_response = True
                self._refused.update(indexes)
                self._refusal = problem
            else:
                self._take_problem(request.destination, indexes, problem)

    def result(self) -> list[Outcome]:
        """Return an outcome for each message. Raises BatchRefused if AWS refused a request as a whole."""
        with self._lock:
            accepting = {entry.destination for index, entry in self.encoded.items() if self.outcomes[index] is ACCEPTED}
            for index, problem in self._failing.items():
                # The message is the cause of an error of AWS only if AWS accepted others for the same destination.
                is_cause = self.encoded[index].destination in accepting
                refused = retry_later(problem.text, error_class=_error_class(problem))
                self.outcomes[index] = refused if is_cause else _outcome(problem)
            missing = set_aside(SLOW, 0.0, error_class="aws.slow")
            if self.outage or not self.has_response:
                missing = unanswered(self.outage or "AWS has not responded in time")
            refusal = self._refusal
            if refusal is None:
                return self.complete(missing)
            self.set_all(set(self.without_outcome()) - self._refused, missing)
            permanent, error_class = refusal.kind is Kind.CONTENT, _error_class(refusal)
            raise BatchRefused(refusal.text, [*self.outcomes], permanent=permanent, error_class=error_class)

    def _take_problem(self, destination: str, indexes: Collection[int], problem: Problem) -> None:
        # A destination that was configured for all messages is not the fault of one.
        at_fault = (Kind.CREDENTIALS, Kind.DENIED, Kind.MISSING) if self._one_destination else (Kind.CREDENTIALS,)
        if problem.kind in at_fault:
            self.outage = self.outage or problem.text
            return
        self.has_response = True
        if problem.kind in (Kind.INTERNAL, Kind.UNKNOWN):
            self._failing |= dict.fromkeys(indexes, problem)
            return
        outcome = _outcome(problem)
        if problem.kind is not Kind.CONTENT:
            outcome = self._closed.setdefault(destination, outcome)
        self.set_all(indexes, outcome)


def _divide(destination: str, entries: Iterable[tuple[int, Entry]], max_bytes: int) -> Iterator[AWSRequest]:
    request, size = AWSRequest(destination, {}, []), 0
    for index, entry in entries:
        if len(request.entries) == MAX_ENTRIES or (request.entries and size + entry.size > max_bytes):
            yield request
            request, size = AWSRequest(destination, {}, []), 0
        entry.fields["Id"] = id = str(len(request.entries))
        request.indexes[id] = index
        request.entries.append(entry.fields)
        size += entry.size
    if request.entries:
        yield request


def _read_failure(entry: Mapping[str, Any]) -> Problem:
    sender_fault = entry.get("SenderFault") is True
    return explain_code(str(entry.get("Code", "")), str(entry.get("Message", "")), sender_fault=sender_fault)


def _outcome(problem: Problem) -> Outcome:
    error_class = _error_class(problem)
    if problem.kind in WAITS:
        return set_aside(problem.text, WAITS[problem.kind], error_class=error_class)
    return rejected(problem.text, error_class=error_class)


def _error_class(problem: Problem) -> str:
    return "aws.refused" if problem.kind in (Kind.CONTENT, Kind.UNKNOWN) else f"aws.{problem.kind.value}"
