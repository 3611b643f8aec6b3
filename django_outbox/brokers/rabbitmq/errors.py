"""Explain the errors of RabbitMQ and pika, and name the remedy."""

from pika import exceptions
from pika.adapters.utils.connection_workflow import AMQPConnectorStackTimeout

from django_outbox.brokers.network_errors import explain_network

# The reply code, a part of the reply text in lower case, and the remedy.
_REMEDIES = (
    (404, "no queue", "declare the queue, or correct the option queue"),
    (403, "access to queue", "give the user of the url permission to read the queue"),
    (406, "queue type rabbit_stream_queue", "it is a stream; read a classic queue or a quorum queue instead"),
    (406, "timeout value", "the database took longer than the broker's consumer_timeout"),
    (404, "no exchange", "declare it, or set declare_exchange"),
    (403, "access to topic", "give the user of the url topic permission for this routing key"),
    (403, "refused for user", "give the user of the url permission to write to the exchange"),
    (406, "inequivalent arg", "it exists with other properties: change declare_exchange, or delete it"),
)


def explain(error: BaseException) -> str:
    """Return on one line why a connection could not be opened, or why it or a channel was closed, and the remedy."""
    error = _root(error)
    text = explain_network(
        error,
        server="the broker",
        option="url",
        without_tls="use amqp:// in url, or the port for TLS, usually 5671",
        authority="cafile in the option ssl, or ca_certs in broker_use_ssl of the Celery app",
    )
    if text:
        return text
    if isinstance(error, exceptions.IncompatibleProtocolError) or "StreamLostError" in str(error.args):
        text = (
            "the connection ended before it was open: the broker is starting or stopping, a proxy cannot reach it, or "
            "this port does not speak AMQP; if it expects TLS, use amqps:// in url"
        )
    elif isinstance(error, exceptions.ProbableAuthenticationError):
        text = f"the login is refused, check user and password in url: {error.args[0]}"
    elif isinstance(error, exceptions.ProbableAccessDeniedError):
        text = f"access to the vhost is refused, check the vhost in url: {error.args[0]}"
    elif isinstance(error, exceptions.ConnectionOpenAborted | AMQPConnectorStackTimeout):
        text = "no response in time"
    elif isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        text = f"{error.reply_code} {error.reply_text}"
        reply = text.lower() if isinstance(error, exceptions.ChannelClosed) else ""
        for code, part, remedy in _REMEDIES:
            if reply.startswith(str(code)) and part in reply:
                return f"{text}: {remedy}"
    else:
        text = str(error)
    return text or type(error).__name__


def blames_message(error: BaseException, exchange: str) -> bool:
    """Return whether the broker closed the channel because of one message, not because of a condition that affects all.

    An exchange that is missing affects all messages. So does an exchange that the user may not write to, unless
    `exchange`, the publisher's, is blank, and a message has its own. A missing topic permission affects one routing
    key. RabbitMQ replies 406 to properties or headers that it does not accept.
    """
    if not isinstance(error, exceptions.ChannelClosedByBroker) or error.reply_code == 404:
        return False
    text = error.reply_text
    return not lacks_permission(error) or "access to topic" in text or not (exchange or "'amq.default'" in text)


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
