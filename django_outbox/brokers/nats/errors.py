"""Explain the errors of NATS and nats-py, and name the remedy."""

import re

from nats import errors

from django_outbox.brokers.network_errors import explain_network

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


def explain(error: BaseException) -> str:
    """Return on one line why a connection could not be opened, or was lost."""
    text = explain_network(error, server="the server", option="servers", without_tls="use nats:// in servers")
    if text:
        return text
    if isinstance(error, errors.SecureConnWantedError):
        text = "the server offers no TLS: use nats:// in servers, or configure TLS on the server"
    elif isinstance(error, errors.Error):
        text = _explain_server_error(error)
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


def _explain_server_error(error: errors.Error) -> str:
    text = str(error).removeprefix("nats: ").replace("'", "").strip()
    for part, remedy in _REMEDIES:
        if part in text.lower():
            return f"{text}; {remedy}"
    return text
