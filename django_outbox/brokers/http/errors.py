"""The result of a request, a response or a failure with its remedy, and the outcome of its message."""

import os
import ssl
from dataclasses import dataclass

import httpcore

from django_outbox.brokers.http.network import AddressRefused
from django_outbox.brokers.network_errors import explain_network
from django_outbox.brokers.suspensions import MIN_WAIT
from django_outbox.messages import ACCEPTED, Outcome, rejected, retry_later, set_aside

BUSY = frozenset((429, 503))
"""The receiver asks to wait, whatever the message: RFC 6585, section 4, and RFC 9110, section 15.6.4."""

BUSY_WAIT = 1.0
"""Seconds that the messages of a busy receiver wait, unless it names a time."""

RETRIED = frozenset((408, 425))
"""Statuses below 500 that a repetition may change: RFC 9110, section 15.5.9 (the request took too long),
and RFC 8470, section 5.2 (too early). All others blame the request."""

MAX_WAIT = 86_400
"""Maximum number of seconds of a `Retry-After` that counts."""

BEFORE_SENDING = (
    httpcore.ConnectError,
    httpcore.ConnectTimeout,
    httpcore.PoolTimeout,
    AddressRefused,
    OSError,
    # From the resolver, for a name with an empty or too long label.
    UnicodeError,
)
"""The request was not sent, because there was no connection."""

DISCONNECTED = (httpcore.ReadError, httpcore.WriteError, httpcore.RemoteProtocolError)
"""The connection was lost, perhaps because the receiver had closed it before the request arrived."""


@dataclass(frozen=True, slots=True)
class Response:
    """A response without its body, and the seconds to wait that it asked for."""

    status: int
    retry_after: float | None = None

    @property
    def is_busy(self) -> bool:
        return self.status in BUSY

    @property
    def wait(self) -> float:
        """Seconds for which to send nothing to a receiver that is busy."""
        return max(BUSY_WAIT if self.retry_after is None else self.retry_after, MIN_WAIT)


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request without a response. If it was `sent`, the receiver may have it, and the message may be the cause."""

    error: str
    error_class: str
    sent: bool


def outcome_of(response: Response) -> Outcome:
    status = response.status
    if 200 <= status < 300:
        return ACCEPTED
    error_class = f"http.{status}"
    if 300 <= status < 400:
        text = f"the receiver responded {status}, a redirect; set url to the address of the receiver"
        return rejected(text, error_class=error_class)
    text = f"the receiver responded {status}"
    if response.is_busy:
        return set_aside(text, response.wait, error_class=error_class)
    if status in RETRIED or status >= 500:
        return retry_later(text, error_class=error_class, retry_after=response.retry_after)
    return rejected(text, error_class=error_class)


def explain(error: Exception) -> FailedRequest:
    sent = not isinstance(error, BEFORE_SENDING)
    cause = _root(error)
    error_class = "http.connection"
    text = explain_network(cause, server="the receiver", option="url", without_tls="check scheme and port in url")
    if isinstance(cause, AddressRefused):
        text, error_class = f"{cause}; set allow_private_addresses if it is in your own network", "http.address"
    elif isinstance(cause, ssl.SSLError):
        text, error_class = text or f"TLS failed ({cause.reason}); check scheme and port in url", "http.tls"
    elif isinstance(error, httpcore.TimeoutException):
        text, error_class = "no response in time" if sent else "no connection in time", "http.timeout"
    elif not text and isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
    text = text or "the connection was lost, or the response is not HTTP"
    return FailedRequest(text, error_class, sent)


def _root(error: BaseException) -> BaseException:
    while error.__cause__ is not None or (error.args and isinstance(error.args[0], BaseException)):
        error = error.__cause__ if error.__cause__ is not None else error.args[0]
    return error


def read_response(response: httpcore.Response) -> Response:
    retry_after = None
    if response.status >= 400:
        for name, value in response.headers:
            if name.lower() == b"retry-after":
                retry_after = _read_retry_after(value)
    return Response(response.status, retry_after)


def _read_retry_after(value: bytes) -> float | None:
    """Return the seconds of a header `Retry-After`, at most a day; None if it has a date instead.

    https://www.rfc-editor.org/rfc/rfc9110#section-10.2.3
    """
    text = value.decode("latin-1").strip()
    # A number of seconds of a century has ten digits.
    return float(min(int(text[:10]), MAX_WAIT)) if text.isascii() and text.isdigit() else None
