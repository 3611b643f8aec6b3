"""The messages of one call of `publish`: divide them into requests, and turn responses into outcomes."""

import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from django_outbox.brokers.aws.encoding import AWSEncoder, Entry
from django_outbox.brokers.aws.errors import Kind, Problem, explain_code
from django_outbox.brokers.call import Call
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import (
    ACCEPTED,
    Message,
    Outcome,
    Verdict,
    rejected,
    retry_later,
    set_aside,
    unanswered,
)

MAX_ENTRIES = 10
"""Maximum number of messages of a request:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatch.html
https://docs.aws.amazon.com/sns/latest/api/API_PublishBatch.html"""

THROTTLE_WAIT = 1.0
"""Minimum number of seconds for which messages of a throttled destination wait, unless AWS names a time."""

INTERNAL_WAIT = 5.0
"""Seconds for which messages wait if AWS fails for every message of their destination, but responds."""

DENIED_WAIT = 30.0
"""Seconds for which messages wait if their destination does not accept them, but others may."""

MAX_WAIT = 3600.0
"""Maximum number of seconds for which messages wait, if AWS names a time."""


SLOW = "AWS responds too slowly: there was no time to send the message"


class AWSRequest(NamedTuple):
    """One batch request.

    Args:
        indexes: the indexes of its messages in the call of `publish`, by the `Id` of their entries.
    """

    destination: str
    indexes: dict[str, int]
    entries: list[dict[str, Any]]


class AWSCall(Call[Message, Entry]):
    """Collects the outcomes of messages; the threads of a call share it.

    Args:
        one_destination: whether all messages of the publisher have the same destination. If it accepts nothing, that
            is an outage; otherwise, only the messages for it wait.

    Attributes:
        outage: why nothing can be sent; blank while it can.
        has_response: whether AWS has responded to a request.
        closed: destinations to which nothing more is sent in this call, and the outcome of their messages.
    """

    def __init__(
        self, messages: Sequence[Message], encoder: AWSEncoder, carrier: str, *, one_destination: bool
    ) -> None:
        super().__init__(messages, encoder.encode, carrier=carrier, error_class="aws")
        self.outage = ""
        self.has_response = False
        self.closed: dict[str, Outcome] = {}
        self._one_destination = one_destination
        self._accepting: set[str] = set()
        self._failing: list[tuple[str, int, Problem]] = []
        self._refused: set[int] = set()
        self._refusal: Problem | None = None
        self._lock = threading.Lock()

    def requests(self, max_bytes: int) -> list[AWSRequest]:
        """Divide messages, each at most `max_bytes` large, into requests for their destinations, in their order."""
        by_destination: dict[str, list[tuple[int, Entry]]] = {}
        for index, entry in self.encoded.items():
            by_destination.setdefault(entry.destination, []).append((index, entry))
        return [request for each in by_destination.items() for request in _divide(*each, max_bytes)]

    def take_response(self, request: AWSRequest, response: Mapping[str, Any]) -> list[Problem]:
        """Record the response for each entry, and return the problems."""
        left = {**request.indexes}
        accepted = [left.pop(each["Id"]) for each in response.get("Successful") or () if each["Id"] in left]
        with self._lock:
            self.has_response = True
            for index in accepted:
                self.outcomes[index] = ACCEPTED
            if accepted:
                self._accepting.add(request.destination)
        found: list[Problem] = []
        for each in response.get("Failed") or ():
            if each["Id"] in left:
                found.append(_read_failure(each))
                self._take_problem(request.destination, [left.pop(each["Id"])], found[-1])
        if left:
            found.append(Problem(Kind.UNKNOWN, "AWS responded, but not for this message"))
            self._take_problem(request.destination, left.values(), found[-1])
        return found

    def take_refusal(self, request: AWSRequest, problem: Problem) -> None:
        """Record that AWS refused a request as a whole, or that it got no response."""
        indexes = request.indexes.values()
        # Internal errors of a whole request are an outage.
        if problem.kind is Kind.INTERNAL:
            self.end(problem.text)
        elif problem.kind in (Kind.CONTENT, Kind.UNKNOWN) and len(indexes) > 1:
            with self._lock:
                self.has_response = True
                self._refused.update(indexes)
                self._refusal = problem
        else:
            self._take_problem(request.destination, indexes, problem)

    def take_closed(self, request: AWSRequest) -> None:
        """Give messages that are not sent the outcome of their destination."""
        with self._lock:
            for index in request.indexes.values():
                self.outcomes[index] = self.closed[request.destination]

    def end(self, reason: str) -> None:
        """Record an outage: messages without an outcome are unanswered."""
        with self._lock:
            self.outage = self.outage or reason

    def result(self) -> list[Outcome]:
        """Return an outcome for each message. Raises BatchRefused if AWS refused a request as a whole."""
        with self._lock:
            outcomes = list(self.outcomes)
            for destination, index, problem in self._failing:
                # The message is to blame for an error of AWS only if AWS accepted others for the same destination.
                outcomes[index] = (
                    retry_later(problem.text, error_class=_error_class(problem))
                    if destination in self._accepting
                    else set_aside(problem.text, INTERNAL_WAIT, error_class=_error_class(problem))
                )
            missing = set_aside(SLOW, 0.0, error_class="aws.slow")
            if self.outage or not self.has_response:
                missing = unanswered(self.outage or "AWS has not responded in time")
            outcomes = [
                outcome or (None if index in self._refused else missing) for index, outcome in enumerate(outcomes)
            ]
            refusal = self._refusal
        if refusal is None:
            return [outcome for outcome in outcomes if outcome is not None]
        raise BatchRefused(
            refusal.text, outcomes, permanent=refusal.kind is Kind.CONTENT, error_class=_error_class(refusal)
        )

    def _take_problem(self, destination: str, indexes: Iterable[int], problem: Problem) -> None:
        """Record the outcome of messages with the same problem."""
        # The messages are not to blame for a destination that was configured for all of them.
        at_fault = (Kind.CREDENTIALS, Kind.DENIED, Kind.MISSING) if self._one_destination else (Kind.CREDENTIALS,)
        if problem.kind in at_fault:
            self.end(problem.text)
            return
        with self._lock:
            self.has_response = True
            if problem.kind in (Kind.INTERNAL, Kind.UNKNOWN):
                self._failing += [(destination, index, problem) for index in indexes]
                return
            outcome = _outcome(problem)
            if outcome.verdict is Verdict.DEFERRED or problem.kind is Kind.MISSING:
                outcome = self.closed.setdefault(destination, outcome)
            for index in indexes:
                self.outcomes[index] = outcome


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
    return explain_code(
        str(entry.get("Code", "")),
        str(entry.get("Message", "")),
        # moto sends it as text.
        sender_fault=str(entry.get("SenderFault")).lower() == "true",
    )


def _outcome(problem: Problem) -> Outcome:
    error_class = _error_class(problem)
    if problem.kind is Kind.THROTTLED:
        # Relays that were throttled together come back one by one.
        seconds = min(problem.retry_after or THROTTLE_WAIT + random.random(), MAX_WAIT)  # noqa: S311
        return set_aside(problem.text, seconds, error_class=error_class)
    if problem.kind is Kind.DENIED:
        return set_aside(problem.text, DENIED_WAIT, error_class=error_class)
    return rejected(problem.text, error_class=error_class)


def _error_class(problem: Problem) -> str:
    return "aws.refused" if problem.kind in (Kind.CONTENT, Kind.UNKNOWN) else f"aws.{problem.kind.value}"
