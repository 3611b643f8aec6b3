"""Encode task messages for AMQP 0-9-1 with the properties that Celery's own producer sets."""

from functools import lru_cache

from pika import BasicProperties
from pika.spec import Basic

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.celery.envelope import TaskMessage
from django_outbox.brokers.rabbitmq.encoding import Encoded, encode_headers, short_string
from django_outbox.messages import Message

MAX_PRIORITY = 255

PERSISTENT = 2

_METHOD = Basic.Publish.INDEX.to_bytes(4, "big")

_ALWAYS = (
    BasicProperties.FLAG_CONTENT_TYPE
    | BasicProperties.FLAG_CONTENT_ENCODING
    | BasicProperties.FLAG_HEADERS
    | BasicProperties.FLAG_DELIVERY_MODE
    | BasicProperties.FLAG_PRIORITY
    | BasicProperties.FLAG_MESSAGE_ID
)

_BEFORE_MESSAGE_ID = (
    ("correlation_id", BasicProperties.FLAG_CORRELATION_ID),
    ("reply_to", BasicProperties.FLAG_REPLY_TO),
    ("expiration", BasicProperties.FLAG_EXPIRATION),
)
_AFTER_MESSAGE_ID = (
    ("type", BasicProperties.FLAG_TYPE),
    ("user_id", BasicProperties.FLAG_USER_ID),
    ("app_id", BasicProperties.FLAG_APP_ID),
)


def encode_task(message: Message) -> Encoded:
    """Encode a task message. The property `message_id`, which Celery does not set, identifies it if it comes back.

    Raises:
        Unencodable: AMQP cannot carry it.
    """
    assert isinstance(message, TaskMessage)
    values = message.properties
    flags = _ALWAYS
    before: list[bytes] = []
    after: list[bytes] = []
    for pieces, names in ((before, _BEFORE_MESSAGE_ID), (after, _AFTER_MESSAGE_ID)):
        for name, flag in names:
            if value := values.get(name):
                flags |= flag
                pieces.append(short_string(name, str(value)))
    headers = encode_headers(message.headers)
    properties = (
        flags.to_bytes(2, "big"),
        _content(message.content_type, message.content_encoding),
        len(headers).to_bytes(4, "big"),
        headers,
        _octet("delivery_mode", values.get("delivery_mode") or PERSISTENT),
        _octet("priority", values.get("priority") or 0),
        *before,
        short_string("message_id", message.message_id),
        *after,
    )
    return Encoded(_publish(message.exchange, message.topic), b"".join(properties))


@lru_cache(maxsize=1000)
def _publish(exchange: str, routing_key: str) -> bytes:
    short_string("the exchange", exchange)
    short_string("the routing key", routing_key)
    method = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=True)
    return _METHOD + b"".join(method.encode())


@lru_cache(maxsize=100)
def _content(content_type: str, content_encoding: str) -> bytes:
    return short_string("content_type", content_type) + short_string("content_encoding", content_encoding)


def _octet(name: str, value: object) -> bytes:
    if not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise Unencodable(f"{name} is {value!r}; it must be a number from 0 to {MAX_PRIORITY}")
    return value.to_bytes(1, "big")
