"""The messages of one call of `publish`: pass their requests to the servers, and turn the results into outcomes."""

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from django_outbox.brokers.call import Call
from django_outbox.brokers.http.connection import UNAVAILABLE, Job, Result, Results, ServerConnections
from django_outbox.brokers.http.encoding import Request
from django_outbox.brokers.http.errors import FailedRequest, Response
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.http.urls import Origin
from django_outbox.brokers.suspensions import FIRST_WAIT, MIN_WAIT, Suspensions
from django_outbox.messages import Message, Outcome, retry_later, set_aside, unanswered

BEGIN_FACTOR = 1.25
"""Requests begin for this multiple of the timeout: after one without a response, another one shows whether the message
or the server is to blame."""

LATE = "it was not sent, because the messages before it took too long"


class HTTPCall(Call[Message, Request]):
    """The messages of one call of `publish`, sorted by their servers.

    Messages for a server that is unavailable are set aside, so that those for other servers are delivered. If all
    servers of the publisher are unavailable, it is an outage, and they are unanswered.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        options: HTTPOptions,
        servers: Mapping[Origin, ServerConnections],
        suspensions: Suspensions[Origin],
    ) -> None:
        super().__init__(messages, options.encoder.encode, carrier="HTTP", error_class="http")
        self._servers = servers
        self._suspensions = suspensions
        self._statuses = options.statuses
        self._timeout = options.timeout
        self._begin_until = time.monotonic() + BEGIN_FACTOR * options.timeout
        self._results: dict[int, Result] = {}
        self._indexes: dict[Origin, list[int]] = {}
        for index, request in self.encoded.items():
            self._indexes.setdefault(request.origin, []).append(index)

    def publish(self) -> None:
        self._suspensions.update()
        trials: dict[Origin, list[int]] = {}
        first: dict[Origin, list[int]] = {}
        for origin, indexes in self._indexes.items():
            if origin not in self._suspensions:
                first[origin] = indexes
            elif self._suspensions.begin_trial(origin):
                trials[origin] = indexes
        # By chance, so that a message that the server never responds to does not keep it suspended.
        chosen = {origin: random.choice(indexes) for origin, indexes in trials.items()}  # noqa: S311
        try:
            self._send(first, {origin: [index] for origin, index in chosen.items()})
        finally:
            for origin in trials:
                self._suspensions.end_trial(origin)
        self._send(
            {
                origin: [index for index in indexes if index != chosen[origin]]
                for origin, indexes in trials.items()
                if origin not in self._suspensions
            },
            {},
        )

    def result(self) -> list[Outcome]:
        responding = set()
        for origin, indexes in self._indexes.items():
            results = [self._results.get(index) for index in indexes]
            if any(isinstance(result, Response) and not self._statuses.is_busy(result) for result in results):
                responding.add(origin)
            else:
                for result in results:
                    if isinstance(result, FailedRequest):
                        self._suspensions.begin(origin, result.error, UNAVAILABLE)
                        break
        all_suspended = all(server.is_suspended for server in self._servers.values())
        return [
            outcome or self._outcome(index, responding, all_suspended=all_suspended)
            for index, outcome in enumerate(self.outcomes)
        ]

    def _send(self, ordinary: Mapping[Origin, Sequence[int]], trials: Mapping[Origin, Sequence[int]]) -> None:
        results = Results([index for indexes in (*ordinary.values(), *trials.values()) for index in indexes])
        for some, is_trial in ((ordinary, False), (trials, True)):
            for origin, indexes in some.items():
                jobs = [Job(results, index, self.encoded[index], self._begin_until, is_trial) for index in indexes]
                self._servers[origin].submit(jobs)
        # One second for threads that are late.
        self._results |= results.wait((BEGIN_FACTOR + 1) * self._timeout + 1)

    def _outcome(self, index: int, responding: set[Origin], *, all_suspended: bool) -> Outcome:
        """Return the outcome of a message that was sent, or not sent because of its server."""
        result = self._results.get(index)
        if isinstance(result, Outcome):
            return result
        origin = self.encoded[index].origin
        if isinstance(result, Response):
            return self._response_outcome(result, origin)
        if isinstance(result, FailedRequest) and origin in responding:
            return _failure_outcome(origin, result)
        suspended = self._suspensions.outcome(origin)
        if suspended is None:
            return set_aside(LATE, MIN_WAIT, error_class="http.late")
        reason = f"{origin}: {result.error if isinstance(result, FailedRequest) else suspended.error}"
        if all_suspended:
            return unanswered(reason)
        return replace(suspended, error=reason)

    def _response_outcome(self, response: Response, origin: Origin) -> Outcome:
        if not self._statuses.is_busy(response):
            return self._statuses.outcome(response)
        seconds = response.retry_after
        if seconds is None and (suspended := self._suspensions.outcome(origin)) is not None:
            seconds = suspended.retry_after
        text = f"the receiver responded {response.text}"
        return set_aside(text, max(seconds or 0.0, MIN_WAIT), error_class=f"http.{response.status}")


def _failure_outcome(origin: Origin, failure: FailedRequest) -> Outcome:
    """Return the outcome of a message without a response, although others for the same server have one."""
    error = f"{origin}: {failure.error}"
    if failure.sent:
        return retry_later(error, error_class=failure.error_class)
    return set_aside(error, FIRST_WAIT, error_class=failure.error_class)
