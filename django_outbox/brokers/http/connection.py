"""The connections to one server: each has a thread, which sends one request at a time."""

import threading
import time
from collections.abc import Collection, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import h11
import httpcore

from django_outbox.brokers.http.encoding import Request
from django_outbox.brokers.http.errors import (
    BEFORE_SENDING,
    DISCONNECTED,
    FailedRequest,
    Response,
    explain,
    read_response,
)
from django_outbox.brokers.http.network import Deadline, Network
from django_outbox.brokers.http.options import HTTPOptions
from django_outbox.brokers.http.urls import Origin
from django_outbox.brokers.suspensions import Suspensions
from django_outbox.logs import logger
from django_outbox.messages import Outcome, rejected

MAX_RESPONSE_BYTES = 65_536
"""Maximum number of bytes to read of a response's body; a connection with more to read is closed."""

CLOSE_SECONDS = 5.0
"""Seconds to wait for the end of all threads; one that hangs ends with its request."""

KEEPALIVE_SECONDS = 60.0
"""Seconds for which an idle connection is kept. The server may close it earlier."""

MAX_FAILURES = 2
"""Number of consecutive requests without a response that suspend a server. A single request may be to blame itself."""

MAX_ASKED_WAIT = 300.0
"""Maximum number of seconds for which a server is suspended because it asks for it."""

UNAVAILABLE = "http.unavailable"

Result = Response | FailedRequest | Outcome | None
"""The result of a request: an outcome if HTTP could not carry it, None if it was not sent."""

NO_RESPONSE = FailedRequest("no response in time", "http.timeout", sent=True)


class Results:
    """The results of requests that are submitted together, by their indexes. Thread-safe."""

    def __init__(self, indexes: Collection[int]) -> None:
        self._indexes = indexes
        self._found: dict[int, Result] = {}
        self._done = threading.Event()

    def put(self, index: int, result: Result) -> None:
        # Adding to a dict and reading its size are atomic, so the last thread sees the full size.
        self._found[index] = result
        if len(self._found) == len(self._indexes):
            self._done.set()

    def wait(self, seconds: float) -> dict[int, Result]:
        """Return all results. A result that is missing after that many seconds is a failure."""
        if self._indexes:
            self._done.wait(seconds)
        return dict.fromkeys(self._indexes, NO_RESPONSE) | self._found.copy()


class Job(NamedTuple):
    """A request to send.

    Args:
        begin_until: when it must have begun, by `time.monotonic()`.
        is_trial: whether it is sent although the server is suspended.
    """

    results: Results
    place: int
    request: Request | None
    begin_until: float
    is_trial: bool


class ServerConnections:
    """Sends requests to one server.

    Each thread has its own connection. httpcore's pool would search all requests and connections for each request,
    under a lock: with 20 threads that takes twice as long. With HTTP/2, threads could share connections, but in
    httpcore they would mix up each other's frames, and a time limit of one request would end all others.

    Attributes:
        is_known: whether the server has responded since the last failure.
    """

    def __init__(self, origin: Origin, options: HTTPOptions, suspensions: Suspensions[Origin]) -> None:
        self.origin = origin
        self.is_known = False
        self._suspensions = suspensions
        self._failures = 0
        self._busy = ""
        self._busy_until = 0.0
        self._options = options
        self._deadline = Deadline()
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_suspended(self) -> bool:
        """Whether nothing is sent, except on trial."""
        return self.origin in self._suspensions

    @property
    def busy(self) -> str:
        """The response of the server that asked for the current pause; blank if there is none."""
        return self._busy if self.is_suspended and time.monotonic() < self._busy_until else ""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send requests as soon as possible, or not at all after `close`."""
        with self._lock:
            if self._is_closed:
                for job in jobs:
                    job.results.put(job.place, FailedRequest("the publisher was closed", "http.closed", sent=False))
                return
            while len(self._threads) < min(self._options.concurrency, len(jobs)):
                name = f"outbox-http-{self._options.alias}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
            for job in jobs:
                self._jobs.put(job)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for _ in self._threads:
                self._jobs.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0))

    def _run(self) -> None:
        with self._make_pool() as pool:
            while self._run_next(pool):
                pass

    def _run_next(self, pool: httpcore.ConnectionPool) -> bool:
        """Process the next job. Return False at the end."""
        # In a function, so that a waiting thread keeps no request alive.
        job = self._jobs.get()
        if job is None:
            return False
        result: Result = FailedRequest("the request could not be sent", "http.connection", sent=False)
        try:
            result = self._process(job, pool)
        except Exception as error:
            # The thread has to continue: no other thread would send the waiting requests.
            logger.exception(
                "Publisher %(publisher)r: a request failed",
                event="publisher.request_failed",
                publisher=self._options.alias,
            )
            result = explain(error)
        finally:
            job.results.put(job.place, result)
        return True

    def _process(self, job: Job, pool: httpcore.ConnectionPool) -> Result:
        if time.monotonic() > job.begin_until or (self.is_suspended and not job.is_trial):
            return None
        result = self._send(job.request, pool)
        if isinstance(result, FailedRequest):
            self._note_failure(result)
        elif isinstance(result, Response):
            self._note_response(result, is_busy=job.request is not None and self._options.statuses.is_busy(result))
        return result

    def _note_failure(self, failure: FailedRequest) -> None:
        """Suspend the server, unless the request may be to blame."""
        with self._lock:
            self.is_known = False
            self._failures += 1
            is_suspended = not failure.sent or self._failures >= MAX_FAILURES
        if is_suspended:
            self._suspensions.begin(self.origin, failure.error, UNAVAILABLE)

    def _note_response(self, response: Response, *, is_busy: bool) -> None:
        self.is_known = True
        if is_busy:
            asked = None if response.retry_after is None else min(response.retry_after, MAX_ASKED_WAIT)
            text = f"the receiver responded {response.text}"
            outcome = self._suspensions.begin(self.origin, text, UNAVAILABLE, asked=asked)
            self._busy, self._busy_until = text, time.monotonic() + (outcome.retry_after or 0.0)
        else:
            self._failures, self._busy_until = 0, 0.0
            self._suspensions.end(self.origin)

    def _send(self, request: Request | None, pool: httpcore.ConnectionPool) -> Result:
        self._deadline.start(self._options.timeout)
        try:
            try:
                return self._exchange(request, pool)
            except DISCONNECTED:
                if self._deadline.connected:
                    raise
                # The server may close an idle connection at any time. Receivers know a repeated message by its ID.
                return self._exchange(request, pool)
        except httpcore.UnsupportedProtocol as error:
            return _reject(error)
        except httpcore.LocalProtocolError as error:
            # h2's error may be about the connection.
            return _reject(error) if isinstance(error.__cause__, h11.LocalProtocolError) else explain(error)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, *BEFORE_SENDING) as error:
            return explain(error)

    def _exchange(self, request: Request | None, pool: httpcore.ConnectionPool) -> Response:
        """Send a request and return the response. At most `MAX_RESPONSE_BYTES` of its body are read."""
        response = pool.handle_request(self._encode(request))
        try:
            found = read_response(response)
            size = 0
            try:
                for chunk in response.iter_stream():
                    size += len(chunk)
                    if size > MAX_RESPONSE_BYTES:
                        break
            except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
                # The status is the response; the body is read only to use the connection again.
                return found
        finally:
            response.close()
        return found

    def _encode(self, request: Request | None) -> httpcore.Request:
        """Return a signed request; without one, https://www.rfc-editor.org/rfc/rfc9110#section-9.3.7 does nothing."""
        scheme, host, port = self.origin
        target = b"*" if request is None else request.target
        url = httpcore.URL(scheme=scheme.encode(), host=host.encode(), port=port, target=target)
        if request is None:
            headers = [(b"host", self.origin.authority.encode()), (b"content-length", b"0")]
            return httpcore.Request(b"OPTIONS", url, headers=headers)
        headers = self._options.encoder.sign(request, time.time())
        return httpcore.Request(b"POST", url, headers=headers, content=request.body)

    def _make_pool(self) -> httpcore.ConnectionPool:
        options = self._options
        network = Network(
            self._deadline,
            connect_timeout=options.connect_timeout,
            allow_private=options.allow_private_addresses,
        )
        return httpcore.ConnectionPool(
            ssl_context=options.tls,
            max_connections=1,
            max_keepalive_connections=1,
            keepalive_expiry=KEEPALIVE_SECONDS,
            http2=options.http2,
            network_backend=network,
        )


def _reject(error: Exception) -> Outcome:
    return rejected(f"HTTP cannot carry the message: {error}", error_class="http.unencodable")
