"""The errors of NATS and nats-py with their remedies, and the outcome of a message by the response of a stream.

The codes are listed in https://github.com/nats-io/nats-server/blob/main/server/errors.json (read in version 2.12, main
of August 2026); `server/stream.go` and `server/jetstream_cluster.go` show which of them a publisher is sent.
"""

import json
import re

from nats import errors

from django_outbox.brokers.network_errors import explain_network
from django_outbox.messages import ACCEPTED, Outcome, rejected, retry_later, set_aside

BLAMED = ("maximum payload violation", "maximum control line exceeded", "unknown protocol operation", "parser error")
"""Errors with which the server ends a connection because of something that was sent over it: `server/client.go`."""

_DENIED = re.compile(r'permissions violation for publish to "(.+?)"')

SUBSCRIPTION_DENIED = "permissions violation for subscription"

_REMEDIES = (
    (SUBSCRIPTION_DENIED, "permit the user to subscribe to it, or set inbox_prefix"),
    ("authorization violation", "check user, password or token in servers, or the option credentials"),
)
"""Parts of the errors that a server sends, in lower case, and the remedy."""

REFUSED_WAIT = 5.0
"""Seconds that a message waits if its stream refuses it for a cause outside of it, such as a limit."""

BUSY_WAIT = 2.0
"""Seconds that a message waits if its stream has no leader, or confirms nothing."""

STORE_FAILED = 10077
"""JSStreamStoreFailedF: the text is an error of the store, `server/store.go`."""

NO_RESPONDERS = b"NATS/1.0 503"
"""The beginning of the headers with which the server responds if no stream, and no other subscriber, has the
subject."""


class NoAnswer(Exception):
    """JetStream did not respond as it should; the text is the reason."""


class NotPermitted(NoAnswer):
    """The user may not ask JetStream."""


class NotUsable(Exception):
    """No server, or the durable consumer, can be used; the text has the reason and the remedy."""


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


_REJECTED: dict[int | str, str] = {
    10054: "too_large",  # JSStreamMessageExceedsMaximumErr
    10097: "too_large",  # JSStreamHeaderExceedsMaximumErr
    "message too large": "too_large",
    10060: "wrong_stream",  # JSStreamNotMatchErr
    10109: "sealed",  # JSStreamSealedErr
}
"""Errors that another attempt would get as well, by their code or the text from the store, and the outcome's class."""

_SET_ASIDE: dict[int | str, str] = {
    "maximum messages exceeded": "stream_full",
    "maximum bytes exceeded": "stream_full",
    "maximum messages per subject exceeded": "stream_full",
    10002: "no_resources",  # JSAccountResourcesExceededErr
    10023: "no_resources",  # JSInsufficientResourcesErr
    10028: "no_resources",  # JSMemoryResourcesExceededErr
    10047: "no_resources",  # JSStorageResourcesExceededErr
    10008: "unavailable",  # JSClusterNotAvailErr
    10009: "unavailable",  # JSClusterNotLeaderErr
    10039: "unavailable",  # JSNotEnabledForAccountErr
    10076: "unavailable",  # JSNotEnabledErr
    10118: "unavailable",  # JSStreamOfflineErr
    10158: "unavailable",  # JSStreamDuplicateMessageConflict: an earlier attempt is being stored
    10163: "unavailable",  # JSStreamExpectedLastSeqPerSubjectNotReady
    10167: "unavailable",  # JSStreamTooManyRequests
    10194: "unavailable",  # JSStreamOfflineReasonErrF
}
"""Errors with a cause outside of the message."""


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
    found = text if code == STORE_FAILED else code
    shown = f"JetStream refused the message: {text} (code {status}, error {code})"
    if found in _REJECTED:
        return rejected(shown, error_class=f"nats.{_REJECTED[found]}")
    if found in _SET_ASIDE:
        return set_aside(shown, REFUSED_WAIT, error_class=f"nats.{_SET_ASIDE[found]}")
    return retry_later(shown, error_class="nats.refused")
