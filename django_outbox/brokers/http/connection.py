"""The server that requests are sent to, and its connections."""

import time
from contextlib import suppress

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
from django_outbox.brokers.parallel import send_in_parallel

MAX_RESPONSE_BYTES = 65_536
"""Maximum number of bytes to read of a response's body; a connection with more to read is closed."""

KEEPALIVE_SECONDS = 60.0
"""Seconds for which an idle connection is kept. The server may close it earlier."""

MAX_ASKED_WAIT = 300.0
"""Maximum number of seconds for which nothing is sent to a server because it asks for it."""

Result = Response | FailedRequest

NO_RESPONSE = FailedRequest("no response in time", "http.timeout", sent=True)


class Server:
    """Sends requests to the server; it is known if it responded to the last one."""

    def __init__(self, options: HTTPOptions) -> None:
        self.is_known = False
        self._options = options
        self._busy = ""
        self._busy_until = 0.0
        self._idle: list[HTTPConnection] = []

    @property
    def busy(self) -> str:
        """The response with which the server asked for a pause; empty if there is none, or it is over."""
        return self._busy if time.monotonic() < self._busy_until else ""

    def send(self, request: Request | None) -> Result:
        """Send a request, or without one a request that does nothing."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = HTTPConnection(self._options)
        try:
            result = connection.send(request)
        finally:
            self._idle.append(connection)
        self.is_known = not isinstance(result, FailedRequest)
        if request is not None and isinstance(result, Response) and result.is_busy:
            self._busy = f"the receiver responded {result.status}"
            self._busy_until = time.monotonic() + min(result.wait, MAX_ASKED_WAIT)
        return result

    def probe(self) -> str:
        """Send a request that does nothing. Return the reason if there is no response."""
        results: list[Result] = [NO_RESPONSE]
        send_in_parallel(
            [None],
            lambda request: results.append(self.send(request)),
            thread_name=f"outbox-http-{self._options.alias}",
            concurrency=1,
            begin_seconds=self._options.timeout,
            wait_seconds=self._options.timeout + 1,
        )
        return "" if isinstance(results[-1], Response) else f"{self._options.origin}: {results[-1].error}"

    def close(self) -> None:
        """Close idle connections. One that is in use is closed when it is forgotten, with this object."""
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


class HTTPConnection:
    """A connection for one request at a time, which connects again as necessary.

    httpcore's pool would search all requests and connections for each request, under a lock: with 20 threads that takes
    twice as long, so each connection is a separate pool.
    """

    def __init__(self, options: HTTPOptions) -> None:
        self._options = options
        self._deadline = Deadline()
        self._pool = httpcore.ConnectionPool(
            ssl_context=options.tls,
            max_connections=1,
            max_keepalive_connections=1,
            keepalive_expiry=KEEPALIVE_SECONDS,
            network_backend=Network(self._deadline, allow_private=options.allow_private_addresses),
        )

    def close(self) -> None:
        self._pool.close()

    def send(self, request: Request | None) -> Result:
        self._deadline.start(self._options.timeout)
        try:
            try:
                return self._exchange(request)
            except DISCONNECTED:
                if self._deadline.connected:
                    raise
                # The server may close an idle connection at any time. Receivers know a repeated message by its ID.
                return self._exchange(request)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, *BEFORE_SENDING) as error:
            return explain(error)

    def _exchange(self, request: Request | None) -> Response:
        response = self._pool.handle_request(self._encode(request))
        try:
            # The status is the response; the body is read only to use the connection again.
            with suppress(httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError):
                size = 0
                for chunk in response.iter_stream():
                    size += len(chunk)
                    if size > MAX_RESPONSE_BYTES:
                        break
            return read_response(response)
        finally:
            response.close()

    def _encode(self, request: Request | None) -> httpcore.Request:
        """Return a signed request; without one, https://www.rfc-editor.org/rfc/rfc9110#section-9.3.7 does nothing."""
        scheme, host, port = origin = self._options.origin
        target = b"*" if request is None else self._options.target
        url = httpcore.URL(scheme=scheme.encode(), host=host.encode(), port=port, target=target)
        if request is None:
            headers = [(b"host", origin.authority.encode()), (b"content-length", b"0")]
            return httpcore.Request(b"OPTIONS", url, headers=headers)
        headers = self._options.encoder.sign(request, time.time())
        return httpcore.Request(b"POST", url, headers=headers, content=request.body)
