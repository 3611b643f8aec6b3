"""Redis's errors, and the outcome of a message.

Sources of the codes: https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors, and `shared.*err` in
Redis's `server.c`.
"""

import re

import redis

from django_outbox.brokers.network_errors import explain_network
from django_outbox.messages import Outcome, rejected, retry_later, unanswered
from django_outbox.utils.text import describe, one_line

OUTAGES = frozenset(
    (
        *("OOM", "READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "WRONGPASS", "NOREPLICAS", "MISCONF", "BUSY"),
        # A server of a Redis Cluster, which is not supported.
        *("UNKILLABLE", "MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"),
    )
)
"""Codes of errors that are not a message's fault."""

_REFUSALS_OF_ALL = re.compile(r"max number of clients|unknown command|run the '", re.IGNORECASE)
"""Parts of errors that refuse every message. They have no code, or the code NOPERM."""


class Lost(Exception):
    """The server cannot be reached, or the connection to it has ended; the text is the reason."""


def outcome_of(error: str) -> Outcome:
    """Return the outcome of a message, given the error in reply to its XADD.

    Errors that Redis reports with the general code `ERR`, and that are not known, are taken to be the message's.
    """
    code = error.partition(" ")[0]
    if code in OUTAGES or (code in ("ERR", "NOPERM") and _REFUSALS_OF_ALL.search(error)):
        return unanswered(error)
    if code == "WRONGTYPE":
        text = f"the key of the stream holds a value that is not a stream: delete it, or use another name ({error})"
        return rejected(text, error_class="redis.wrong_type")
    if code == "NOPERM":
        text = f"give the user of the url permission for the key of the stream ({error})"
        return retry_later(text, error_class="redis.no_permission")
    if "too large" in error or "invalid bulk length" in error:
        return rejected(error, error_class="redis.too_large")
    return retry_later(error, error_class="redis.refused")


def explain(error: BaseException) -> str:
    """Return on one line why a server cannot be reached, why a connection was lost, or what a server refused."""
    # redis-py raises its own errors while it handles the socket's.
    cause = error.__context__ if isinstance(error, redis.ConnectionError) and error.__context__ else error
    text = explain_network(cause, server="Redis", option="url", without_tls="use redis:// in url, or the port for TLS")
    if text:
        return text
    if isinstance(error, redis.TimeoutError):
        return "no response in time"
    if isinstance(error, redis.exceptions.AskError):
        # Also MOVED; redis-py removes both codes from the text.
        return describe(error)
    return one_line(error) if isinstance(error, redis.RedisError | Lost) else describe(error)
