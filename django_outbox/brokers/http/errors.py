"""Explain why a request had no response, and name the remedy."""

import os
import socket
import ssl
from dataclasses import dataclass

import httpcore

from django_outbox.brokers.http.addresses import AddressRefused

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
class Failure:
    """A request without a response.

    Args:
        error: the reason, as text.
        error_class: a short name for it.
        sent: whether the receiver may have got the request, so that the message may be to blame.
    """

    error: str
    error_class: str
    sent: bool


def explain(error: Exception) -> Failure:
    """Return why a request failed."""
    sent = not isinstance(error, BEFORE_SENDING)
    cause = _root(error)
    error_class = "http.connection"
    if isinstance(cause, AddressRefused):
        text, error_class = f"{cause}; set allow_private_addresses if it is in your own network", "http.address"
    elif isinstance(cause, ssl.SSLCertVerificationError):
        text = f"the receiver's TLS certificate is refused: {cause.verify_message}; check cafile in the option ssl"
        error_class = "http.tls"
    elif isinstance(cause, ssl.SSLError):
        text, error_class = f"TLS failed ({cause.reason}); check scheme and port in url", "http.tls"
    elif isinstance(cause, socket.gaierror):
        text = f"the host name cannot be resolved, check url: {cause.strerror}"
    elif isinstance(error, httpcore.TimeoutException):
        text, error_class = "no response in time" if sent else "no connection in time", "http.timeout"
    elif isinstance(cause, ConnectionRefusedError):
        text = "connection refused; start the receiver, or correct url"
    elif isinstance(cause, OSError) and cause.errno:
        text = os.strerror(cause.errno)
    else:
        text = "the connection was lost, or the response is not HTTP"
    return Failure(text, error_class, sent)


def _root(error: BaseException) -> BaseException:
    """Return the error that httpcore wrapped, possibly several times, in its own errors."""
    while error.__cause__ is not None or (error.args and isinstance(error.args[0], BaseException)):
        error = error.__cause__ if error.__cause__ is not None else error.args[0]
    return error
