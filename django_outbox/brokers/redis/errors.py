"""What Redis's errors mean for a message, and how to remedy them.

Sources of the codes: https://redis.io/docs/latest/develop/reference/protocol-spec/#simple-errors,
https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/ and `shared.*err` in Redis's `server.c`.
"""

import re
import socket
import ssl

import redis

from django_outbox.error_text import describe, one_line
from django_outbox.messages import Outcome, rejected, retry_later, unanswered

OUTAGES = {
    "OOM": "Redis has no memory left: raise maxmemory, or limit the streams with max_length",
    "READONLY": "this server is a read-only replica: name the master in url, or use sentinels",
    "LOADING": "Redis is loading its data; it will accept messages when it has finished",
    "MASTERDOWN": "this server is a replica without its master: name the master in url, or use sentinels",
    "NOAUTH": "Redis requires a login: set user and password in url",
    "WRONGPASS": "the login is refused: check user and password in url",
    "CLUSTERDOWN": "the cluster is down, or its slots are not all served: check its nodes",
    "NOREPLICAS": "Redis has fewer replicas than its min-replicas-to-write: check the replicas",
    "MISCONF": "Redis refuses to write because it cannot save its data: check its log and its disk",
    "BUSY": "a script keeps Redis busy: end it with SCRIPT KILL",
    "UNKILLABLE": "a script keeps Redis busy, and cannot be ended because it has written data",
    "MOVED": "the server belongs to a cluster: set cluster=True",
    "ASK": "the server belongs to a cluster: set cluster=True",
    "TRYAGAIN": "the cluster is moving the stream to another node",
}
"""Codes of errors that are not a message's fault, with the remedy.

Each refuses every write to the server, or every write to a slot of a cluster.
"""

LEAVE_SERVER = frozenset(("READONLY", "LOADING", "MASTERDOWN", "NOAUTH", "CLUSTERDOWN", "MOVED"))
"""Codes after which the connection is closed, because another server may be the right one."""

REDIRECTS = frozenset(("MOVED", "ASK", "TRYAGAIN"))
"""Codes with which a node of a cluster names the node that has the stream, or asks to try again."""

_REFUSALS_OF_ALL = re.compile(r"max number of clients|unknown command|run the '", re.IGNORECASE)
"""Parts of errors without a code of their own, or with the code NOPERM, that refuse every message."""

_NOT_ON_A_REPLICA = re.compile(r"with replica instances", re.IGNORECASE)
"""A part of the error of WAIT on a replica, which has no code of its own."""

_LOGIN = re.compile(r"\bDB index\b|\binvalid password\b|\bAUTH\b|\bSELECT\b", re.IGNORECASE)
"""Parts of errors of the commands AUTH and SELECT, which have no codes of their own."""

_CODES: dict[type[redis.RedisError], str] = {
    redis.exceptions.MasterDownError: "MASTERDOWN",
    redis.exceptions.ClusterDownError: "CLUSTERDOWN",
    redis.exceptions.MovedError: "MOVED",
    redis.exceptions.AskError: "ASK",
    redis.exceptions.TryAgainError: "TRYAGAIN",
    redis.ReadOnlyError: "READONLY",
    redis.BusyLoadingError: "LOADING",
    redis.OutOfMemoryError: "OOM",
}
"""redis-py's errors, and their codes in `OUTAGES`."""

_NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
"""OpenSSL's reasons if the server answers a TLS handshake with something else."""


def code_of(error: str) -> str:
    """Return the code at the beginning of an error."""
    return error.partition(" ")[0]


def outcome_of(error: str) -> Outcome:
    """Return the outcome of a message whose XADD was answered with an error.

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
    """Return on one line why a server cannot be reached, or why a connection was lost."""
    # redis-py raises its own errors while it handles those of the socket.
    cause = error.__context__ if isinstance(error, redis.ConnectionError) and error.__context__ else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        text = f"Redis's TLS certificate is refused: {cause.verify_message}; check cafile in the option ssl"
    elif isinstance(cause, ssl.SSLError) and cause.reason in _NOT_TLS:
        text = f"this port does not speak TLS ({cause.reason}): use redis:// in url, or the port for TLS"
    elif isinstance(cause, socket.gaierror):
        text = f"the host name cannot be resolved, check the host in url: {cause.strerror}"
    elif isinstance(cause, ConnectionRefusedError):
        text = "connection refused; start Redis, or correct host and port in url"
    elif isinstance(cause, FileNotFoundError):
        text = "the socket does not exist; start Redis, or correct the path in url"
    elif isinstance(error, redis.TimeoutError | TimeoutError):
        text = "no response in time"
    elif isinstance(error, redis.ResponseError | redis.AuthenticationError | redis.BusyLoadingError):
        text = _explain_reply(error)
    else:
        text = describe(error)
    return text


def _explain_reply(error: redis.RedisError) -> str:
    """Return on one line what an error that a server replied with means; redis-py removes the codes that it knows."""
    text = one_line(error)
    code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), code_of(text))
    if _NOT_ON_A_REPLICA.search(text):
        code = "READONLY"
    if code in OUTAGES:
        return f"{OUTAGES[code]} ({text})"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return f"give the user of the url permission ({text})"
    if isinstance(error, redis.AuthenticationError) or _LOGIN.search(text):
        return f"the login is refused, check user, password and database in url: {text}"
    return text
