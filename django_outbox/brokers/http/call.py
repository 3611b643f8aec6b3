"""The messages of one call of `publish`: pass their requests to the servers, and turn the results into outcomes."""

import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.http.connection import NO_RESPONSE, UNAVAILABLE, Result, ServerConnections
from django_outbox.brokers.http.encoding import Request
from django_outbox.brokers.http.errors import FailedRequest, Response
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.http.urls import Origin
from django_outbox.brokers.parallel import ParallelRequests
from django_outbox.brokers.suspensions import FIRST_WAIT, MIN_WAIT, Suspensions
from django_outbox.messages import Message, Outcome, retry_later, set_aside, unanswered

BEGIN_FACTOR = 1.25
"""Requests begin for this multiple of the timeout: after one without a response, another one shows whether the message
or the server is the cause."""

LATE = "it was not sent, because the messages before it took too long"


class HTTPCall(EncodedCall[Message, Request]):
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
        self._options = options
        self._servers = servers
        self._suspensions = suspensions
        self._begin_until = time.monotonic() + BEGIN_FACTOR * options.timeout
        self._results: dict[int, Result] = {}
        self._indexes: dict[Origin, list[int]] = {}
        for index, request in self.encoded.items():
            self._indexes.setdefault(request.origin, []).append(index)

    def run(self) -> list[Outcome]:
        self._suspensions.update()
        healthy = {origin: indexes for origin, indexes in self._indexes.items() if origin not in self._suspensions}
        # By chance, so that a message that the server never responds to does not keep it suspended.
        trials = {
            origin: random.choice(indexes)  # noqa: S311
            for origin, indexes in self._indexes.items()
            if self._suspensions.begin_trial(origin)
        }
        try:
            self._send({**healthy, **{origin: [index] for origin, index in trials.items()}}, trials)
        finally:
            for origin in trials:
                self._suspensions.end_trial(origin)
        others = {
            origin: [index for index in self._indexes[origin] if index != tried]
            for origin, tried in trials.items()
            if origin not in self._suspensions
        }
        self._send(others)
        return self._outcomes()

    def _send(self, by_server: Mapping[Origin, Sequence[int]], trials: Collection[Origin] = ()) -> None:
        parallel = ParallelRequests(f"outbox-http-{self._options.alias}", self._begin_until)
        for origin, indexes in by_server.items():
            server = self._servers[origin]
            send = partial(self._send_one, server, origin in trials)
            parallel.send(indexes, send, server.slots, concurrency=self._options.concurrency)
        # One second for threads that are late.
        parallel.wait((BEGIN_FACTOR + 1) * self._options.timeout + 1)

    def _send_one(self, server: ServerConnections, is_trial: bool, index: int) -> None:
        if is_trial or not server.is_suspended:
            self._results[index] = NO_RESPONSE
            self._results[index] = server.send(self.encoded[index])

    def _outcomes(self) -> list[Outcome]:
        responding = set()
        results = self._results.copy()
        for origin, indexes in self._indexes.items():
            found = [results[index] for index in indexes if index in results]
            if any(isinstance(result, Response) and not self._options.statuses.is_busy(result) for result in found):
                responding.add(origin)
            elif failed := next((result for result in found if isinstance(result, FailedRequest)), None):
                self._suspensions.begin(origin, failed.error, UNAVAILABLE)
        all_suspended = all(origin in self._suspensions for origin in self._servers)
        return [
            outcome or self._outcome(index, results.get(index), responding, all_suspended=all_suspended)
            for index, outcome in enumerate(self.outcomes)
        ]

    def _outcome(
        self, index: int, result: Result | None, responding: Collection[Origin], *, all_suspended: bool
    ) -> Outcome:
        origin = self.encoded[index].origin
        if isinstance(result, Outcome):
            return result
        if isinstance(result, Response):
            return self._response_outcome(result, origin)
        if result is not None and origin in responding:
            error = f"{origin}: {result.error}"
            blamed = retry_later(error, error_class=result.error_class)
            return blamed if result.sent else set_aside(error, FIRST_WAIT, error_class=result.error_class)
        suspended = self._suspensions.outcome(origin)
        if suspended is None:
            return set_aside(LATE, MIN_WAIT, error_class="http.late")
        reason = f"{origin}: {suspended.error if result is None else result.error}"
        return unanswered(reason) if all_suspended else replace(suspended, error=reason)

    def _response_outcome(self, response: Response, origin: Origin) -> Outcome:
        if not self._options.statuses.is_busy(response):
            return self._options.statuses.outcome(response)
        seconds = response.retry_after
        if seconds is None and (suspended := self._suspensions.outcome(origin)) is not None:
            seconds = suspended.retry_after
        text = f"the receiver responded {response.text}"
        return set_aside(text, max(seconds or 0.0, MIN_WAIT), error_class=f"http.{response.status}")
