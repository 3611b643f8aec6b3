"""Redis's errors: the outcome of a message, and the remedy.

Sources of the codes: https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors, and `shared.*err` in
Redis's `server.c`.
"""

import re

import redis

from django_outbox.brokers.network_errors import explain_network
from django_outbox.messages import Outcome, rejected, retry_later, unanswered
from django_outbox.utils.text import describe, one_line

OUTAGES = {
    "OOM": "Redis has no memory left: raise maxmemory, or limit the streams with max_length",
    "READONLY": "this server is a read-only replica: name the master in url, or use sentinels",
    "LOADING": "Redis is loading its data; it will accept messages when it has finished",
    "MASTERDOWN": "this server is a replica without its master: name the master in url, or use sentinels",
    "NOAUTH": "Redis requires a login: set user and password in url",
    "WRONGPASS": "the login is refused: check user and password in url",
    "NOREPLICAS": "Redis has fewer replicas than its min-replicas-to-write: check the replicas",
    "MISCONF": "Redis refuses to write because it cannot save its data: check its log and its disk",
    "BUSY": "a script keeps Redis busy: end it with SCRIPT KILL",
    "UNKILLABLE": "a script keeps Redis busy, and cannot be ended because it has written data",
    **dict.fromkeys(
        ("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"),
        "the server belongs to a Redis Cluster, which is not supported: name another server in url",
    ),
}
"""Codes of errors that are not a message's fault, with the remedy."""

_REMEDIES = OUTAGES | {
    "NOGROUP": "the stream or its group was deleted: it is created again",
    "WRONGTYPE": "the key holds a value that is not a stream: correct the option stream",
    "NOPERM": "give the user of the url permission for the stream and its commands",
}

LEAVE_SERVER = frozenset(("READONLY", "LOADING", "MASTERDOWN", "NOAUTH"))
"""Codes after which the connection is closed, because another server may be the right one."""

_REFUSALS_OF_ALL = re.compile(r"max number of clients|unknown command|run the '", re.IGNORECASE)
"""Parts of errors that refuse every message. They have no code, or the code NOPERM."""

_LOGIN = re.compile(r"\bDB index\b|\binvalid password\b|\bAUTH\b|\bSELECT\b", re.IGNORECASE)
"""Parts of errors of the commands AUTH and SELECT, which have no codes."""

_CODES: dict[type[redis.RedisError], str] = {
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.ReadOnlyError: "READONLY",
    redis.BusyLoadingError: "LOADING",
    redis.OutOfMemoryError: "OOM",
    redis.exceptions.NoPermissionError: "NOPERM",
}
"""redis-py's errors, and the codes that redis-py removes from their texts."""


class Lost(Exception):
    """The server cannot be reached, or the connection to it has ended; the text is the reason."""


def code_of(error: str) -> str:
    return error.partition(" ")[0]


def outcome_of(error: str) -> Outcome:
    """Return the outcome of a message, given the error in reply to its XADD.

    Errors that Redis reports with the general code `ERR`, and that are not known, are taken to be the message's.
    """
    code = code_of(error)
    if code in OUTAGES:
        return unanswered(f"{OUTAGES[code]} ({error})")
    if code in ("ERR", "NOPERM") and _REFUSALS_OF_ALL.search(error):
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
        text = "no response in time"
    elif isinstance(error, redis.ResponseError | redis.AuthenticationError | redis.BusyLoadingError):
        text = _explain_response(error)
    elif isinstance(error, Lost):
        text = str(error)
    else:
        text = describe(error)
    return text


def explain_reply(text: str, code: str = "") -> str:
    """Return an error that a server replied with, and its remedy. The code is the first word, if none is given."""
    remedy = _REMEDIES.get(code or code_of(text))
    return f"{remedy} ({text})" if remedy else text


def _explain_response(error: redis.RedisError) -> str:
    text = one_line(error)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), "")
    explained = explain_reply(text, code)
    if explained == text and (isinstance(error, redis.AuthenticationError) or _LOGIN.search(text)):
        return f"the login is refused, check user, password and database in url: {text}"
    return explained
