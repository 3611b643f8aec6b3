"""Explain the errors of RabbitMQ and pika, and name the remedy."""

from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout

from django_outbox.brokers.network_errors import explain_network

# The reply code, a part of the reply text in lower case, and the remedy.
_QUEUE_REMEDIES = (
    (404, "no queue", "declare the queue, or correct the option queue"),
    (403, "in exclusive use", "another consumer reads it exclusively"),
    (403, "access to queue", "give the user of the url permission to read the queue"),
    (406, "queue type rabbit_stream_queue", "it is a stream; read a classic queue or a quorum queue instead"),
    (406, "timeout value", "the database took longer than the broker's consumer_timeout"),
)

# What pika deduces from when the server hangs up.
_DEDUCED = (
    exceptions.IncompatibleProtocolError,
    exceptions.ProbableAuthenticationError,
    exceptions.ProbableAccessDeniedError,
)

_EXCHANGE_REMEDIES = (
    (404, "no exchange", "declare it, or set declare_exchange"),
    (403, "access to topic", "give the user of the url topic permission for this routing key"),
    (403, "refused for user", "give the user of the url permission to write to the exchange"),
    (403, "internal exchange", "name another exchange"),
    (406, "inequivalent arg", "it exists with other properties: change declare_exchange, or delete it"),
)


def explain(error: BaseException, *, has_connected: bool = False) -> str:
    """Return on one line why a connection could not be opened, or why it or a channel was closed, and the remedy.

    Args:
        has_connected: whether the options have worked before, so that a server that hangs up is no sign of wrong ones.
    """
    error = _root(error)
    if has_connected and isinstance(error, _DEDUCED) and "StreamLostError" in str(error.args):
        return "the connection ended before it was open: the broker is starting or stopping, or a proxy cannot reach it"
    text = explain_network(
        error,
        server="the broker",
        option="url",
        without_tls="use amqp:// in url, or the port for TLS, usually 5671",
        authority="cafile in the option ssl, or ca_certs in broker_use_ssl of the Celery app",
    )
    if text:
        return text
    if isinstance(error, exceptions.ProbableAuthenticationError):
        text = f"the login is refused, check user and password in url: {error.args[0]}"
    elif isinstance(error, exceptions.ProbableAccessDeniedError):
        text = f"access to the vhost is refused, check the vhost in url: {error.args[0]}"
    elif isinstance(error, exceptions.IncompatibleProtocolError):
        text = "this port does not speak AMQP, correct host and port in url; if it expects TLS, use amqps://"
    elif isinstance(error, exceptions.ConnectionOpenAborted | AMQPConnectorStackTimeout):
        text = "no response in time"
    elif isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        text = f"{error.reply_code} {error.reply_text}"
        reply = text.lower() if isinstance(error, exceptions.ChannelClosed) else ""
        for code, part, remedy in (*_QUEUE_REMEDIES, *_EXCHANGE_REMEDIES):
            if reply.startswith(str(code)) and part in reply:
                return f"{text}: {remedy}"
    else:
        text = str(error)
    return text or type(error).__name__


def blames_message(error: BaseException) -> bool:
    """Return whether the broker closed the channel because of one message, not because of a condition that affects all.

    An exchange that is missing, or that the user may not write to, affects every message. A missing topic permission
    affects one routing key. RabbitMQ replies 406 to properties or headers that it does not accept.
    """
    if not isinstance(error, exceptions.ChannelClosedByBroker) or error.reply_code == 404:
        return False
    return not lacks_permission(error) or "access to topic" in error.reply_text


def lacks_permission(error: BaseException) -> bool:
    """Return whether the broker refused something that its administrator can permit."""
    return isinstance(error, exceptions.ChannelClosedByBroker) and error.reply_code == 403


def _root(error: BaseException) -> BaseException:
    """Return the error that pika wrapped, possibly several times, in its own errors."""
    wrapped = [getattr(error, "exception", None), *getattr(error, "exceptions", ())[-1:], *error.args[:1]]
    for inner in wrapped:
        if isinstance(inner, BaseException):
            return _root(inner)
    return error
