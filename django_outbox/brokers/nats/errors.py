"""The errors of NATS and nats-py with their remedies, and the outcome of a message by the response of a stream.

The codes are listed in https://github.com/nats-io/nats-server/blob/main/server/errors.json (read in version 2.12, main
of August 2026); `server/stream.go` and `server/jetstream_cluster.go` show which of them a publisher is sent.
"""

import json
import re
from typing import NamedTuple

from nats import errors

from django_outbox.brokers.network_errors import explain_network
from django_outbox.messages import ACCEPTED, Outcome, rejected, retry_later, set_aside

BLAMED = ("maximum payload violation", "maximum control line exceeded", "unknown protocol operation", "parser error")
"""Errors with which the server ends a connection because of something that was sent over it: `server/client.go`."""

_DENIED = re.compile(r'permissions violation for publish to "(.+?)"')

_REMEDIES = (
    ("permissions violation for subscription", "permit the user to subscribe to it, or set inbox_prefix"),
    ("authorization violation", "check user, password or token in servers, or the option credentials"),
    ("authentication expired", "renew the credentials"),
    ("authentication revoked", "renew the credentials"),
    ("authentication timeout", "the server is busy, or its authorization timeout is too short"),
    ("maximum connections exceeded", "raise the server's max_connections"),
    ("maximum account active connections exceeded", "raise the account's limit of connections"),
)
"""Parts of the errors that a server sends, in lower case, and the remedy."""

FULL_WAIT = 5.0
"""Seconds that a message waits if its stream is full, or has no storage left."""

BUSY_WAIT = 2.0
"""Seconds that a message waits if its stream has no leader, or has too much to do."""

STORE_FAILED = 10077
"""JSStreamStoreFailedF: the text comes from an error in `server/store.go`."""

NO_RESPONDERS = b"NATS/1.0 503"
"""The beginning of the headers with which the server responds if no stream, and no other subscriber, has the
subject."""


def explain(error: BaseException) -> str:
    """Return on one line why a connection could not be opened, or was lost."""
    text = explain_network(error, server="the server", option="servers", without_tls="use nats:// in servers")
    if text:
        return text
    if isinstance(error, errors.SecureConnWantedError):
        text = "the server offers no TLS: use nats:// in servers, or configure TLS on the server"
    elif isinstance(error, errors.Error):
        text = str(error).removeprefix("nats: ").replace("'", "").strip()
        if remedy := next((remedy for part, remedy in _REMEDIES if part in text.lower()), ""):
            text = f"{text}; {remedy}"
    else:
        text = str(error)
    return text or type(error).__name__


def blames_message(error: BaseException) -> bool:
    """Return whether the server ended the connection because of a message, which it did not identify."""
    return any(text in str(error).lower() for text in BLAMED)


def denied_subject(error: BaseException) -> str | None:
    """Return the subject to which the server does not permit to publish, in lower case, as nats-py reports it."""
    found = _DENIED.search(str(error).lower())
    return found[1] if found else None


class _Response(NamedTuple):
    """The meaning of an error code of JetStream.

    Args:
        wait: seconds that the message waits for a cause outside of it; None if it is rejected.
    """

    error_class: str
    remedy: str = ""
    wait: float | None = None


_TOO_LARGE = _Response("too_large", "raise the stream's max_msg_size, or the server's max_payload")
_NO_STORAGE = _Response("no_resources", "give the server more storage", FULL_WAIT)
_CHANGING = _Response("unavailable", wait=BUSY_WAIT)
_NOT_ENABLED = _Response("unavailable", wait=FULL_WAIT)
_BUSY = _Response("busy", wait=BUSY_WAIT)

_RESPONSES = {
    # The message, or the configuration, so another attempt would get the same response.
    10054: _TOO_LARGE,  # JSStreamMessageExceedsMaximumErr
    10097: _Response("too_large", "the headers are too large"),  # JSStreamHeaderExceedsMaximumErr
    10060: _Response("wrong_stream", "correct the header Nats-Expected-Stream"),  # JSStreamNotMatchErr
    10109: _Response("sealed", "publish to another stream"),  # JSStreamSealedErr
    # Storage errors, which are not about the message.
    10002: _Response("no_resources", "raise the account's limits of JetStream", FULL_WAIT),
    10023: _NO_STORAGE,  # JSInsufficientResourcesErr
    10028: _Response("no_resources", "give the server more memory", FULL_WAIT),  # JSMemoryResourcesExceededErr
    10047: _NO_STORAGE,  # JSStorageResourcesExceededErr
    # The cluster is changing, or the stream has too much to do.
    10008: _CHANGING,  # JSClusterNotAvailErr
    10009: _CHANGING,  # JSClusterNotLeaderErr
    10039: _NOT_ENABLED,  # JSNotEnabledForAccountErr
    10076: _NOT_ENABLED,  # JSNotEnabledErr
    10118: _CHANGING,  # JSStreamOfflineErr
    10163: _CHANGING,  # JSStreamExpectedLastSeqPerSubjectNotReady
    10194: _NOT_ENABLED,  # JSStreamOfflineReasonErrF
    10167: _BUSY,  # JSStreamTooManyRequests
    # An earlier attempt is being stored.
    10158: _BUSY,  # JSStreamDuplicateMessageConflict
}


_FULL = _Response("stream_full", "raise the stream's limits, or let its consumers catch up", FULL_WAIT)

_STORE_ERRORS = {
    "maximum messages exceeded": _FULL,
    "maximum bytes exceeded": _FULL,
    "maximum messages per subject exceeded": _FULL,
    "message too large": _TOO_LARGE,
}


def read_response(data: bytes) -> Outcome | None:
    """Return the outcome of a message by the stream's response; None if it is not a response of a stream.

    Any subscriber may respond to a message, so that only a confirmation with the stream and the sequence counts.
    """
    try:
        # Given bytes, the parser looks for their encoding first.
        response = json.loads(data.decode())
        error = response.get("error")
        if error is None:
            is_stored = isinstance(response["stream"], str) and response["stream"] and response["seq"] > 0
            return ACCEPTED if is_stored else None
        return _read_error(error["code"], error.get("err_code", 0), str(error.get("description", "")))
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _read_error(status: int, code: int, text: str) -> Outcome:
    meaning = _STORE_ERRORS.get(text) if code == STORE_FAILED else _RESPONSES.get(code)
    shown = f"JetStream refused the message: {text} (code {status}, error {code})"
    if meaning is None:
        return retry_later(shown, error_class="nats.refused")
    if meaning.remedy:
        shown = f"{shown}; {meaning.remedy}"
    error_class = f"nats.{meaning.error_class}"
    if meaning.wait is None:
        return rejected(shown, error_class=error_class)
    return set_aside(shown, meaning.wait, error_class=error_class)
