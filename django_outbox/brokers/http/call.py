"""The messages of one call of `publish`: pass their requests to the server, and turn the results into outcomes."""

import threading
from collections.abc import Sequence

from django_outbox.brokers.call import EncodedCall
from django_outbox.brokers.http.connection import NO_RESPONSE, Result, Server
from django_outbox.brokers.http.encoding import Request
from django_outbox.brokers.http.errors import FailedRequest, Response, outcome_of
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.parallel import send_in_parallel
from django_outbox.brokers.suspensions import FIRST_WAIT, MIN_WAIT
from django_outbox.messages import Message, Outcome, retry_later, set_aside, unanswered

BEGIN_FACTOR = 1.25
"""Requests begin for this multiple of the timeout: after one without a response, another one shows whether the message
or the server is the cause."""

MAX_FAILURES = 2
"""Number of consecutive requests without a response after which no further one is sent. One message may be the cause of
one of them."""

LATE = "it was not sent, because the messages before it took too long"


class HTTPCall(EncodedCall[Message, Request]):
    """The messages of one call of `publish`.

    A message without a response is the cause if the server responds to others, or to a request that does nothing. If it
    responds to neither, it is an outage, and the messages are unanswered.
    """

    def __init__(self, messages: Sequence[Message], options: HTTPOptions, server: Server) -> None:
        super().__init__(messages, options.encoder.encode, carrier="HTTP", error_class="http")
        self._options = options
        self._server = server
        self._results: dict[int, Result] = {}
        self._failures = 0
        self._is_unavailable = False
        self._lock = threading.Lock()

    def run(self) -> list[Outcome]:
        timeout = self._options.timeout
        send_in_parallel(
            self.encoded,
            self._send,
            thread_name=f"outbox-http-{self._options.alias}",
            concurrency=self._options.concurrency,
            begin_seconds=BEGIN_FACTOR * timeout,
            # One second for threads that are late.
            wait_seconds=(BEGIN_FACTOR + 1) * timeout + 1,
        )
        return self._take_results()

    def _send(self, index: int) -> None:
        if self._is_unavailable or self._server.busy:
            return
        self._results[index] = NO_RESPONSE
        self._results[index] = result = self._server.send(self.encoded[index])
        with self._lock:
            if isinstance(result, FailedRequest):
                self._failures += 1
                if not result.sent or self._failures == MAX_FAILURES:
                    self._is_unavailable = True
            else:
                self._failures = 0

    def _take_results(self) -> list[Outcome]:
        results = self._results.copy()
        responds = any(isinstance(result, Response) and not result.is_busy for result in results.values())
        failures = [result for result in results.values() if isinstance(result, FailedRequest)]
        missing = self._server.busy
        is_unavailable = self._is_unavailable or not responds
        if not responds and not missing and any(failure.sent for failure in failures):
            # The server may respond to everything but these messages, which would be sent again forever.
            is_unavailable = bool(self._server.probe())
            responds = not is_unavailable
        if is_unavailable and failures:
            missing = failures[0].error
        for index in self.encoded:
            self.outcomes[index] = self._outcome(results.get(index), missing, responds=responds)
        return self.complete()

    def _outcome(self, result: Result | None, missing: str, *, responds: bool) -> Outcome:
        """Return the outcome of a message; `missing` is the reason if it was not sent, unless it was too late."""
        origin = self._options.origin
        if isinstance(result, Response):
            return outcome_of(result)
        if result is None:
            return unanswered(f"{origin}: {missing}") if missing else set_aside(LATE, MIN_WAIT, error_class="http.late")
        error = f"{origin}: {result.error}"
        if not responds:
            return unanswered(error)
        if result.sent:
            return retry_later(error, error_class=result.error_class)
        return set_aside(error, FIRST_WAIT, error_class=result.error_class)
