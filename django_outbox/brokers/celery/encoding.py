"""A Celery task message as the outbox stores it: written when a task is called, read when it is published.

The message's headers are Celery's own. The payload holds the rest. The body is stored as text within the JSON, not as
JSON values, because a database may reorder the keys of an object and write 1e16 as an integer.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from typing import Any

from django_outbox.brokers.call import Unencodable
from django_outbox.messages import Message

CONTENT_TYPE = "application/json"
CONTENT_ENCODING = "utf-8"

PROPERTIES = ("delivery_mode", "priority", "correlation_id", "reply_to", "expiration", "type", "user_id", "app_id")
"""The AMQP properties that are stored."""


class NotATask(Unencodable):
    """A message is not a task message; the text names the reason and the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"it is no task message: {reason}; call an OutboxTask instead of enqueue()", "not_a_task")


def pack(
    body: str | bytes,
    *,
    content_type: str,
    content_encoding: str,
    exchange: str,
    queues: Sequence[str],
    properties: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the payload that holds a task message, without its headers and its routing key."""
    payload: dict[str, Any] = {"body": body}
    if isinstance(body, bytes):
        payload = {"body": base64.b64encode(body).decode(), "base64": True}
    if content_type != CONTENT_TYPE:
        payload["content_type"] = content_type
    if content_encoding != CONTENT_ENCODING:
        payload["content_encoding"] = content_encoding
    if exchange:
        payload["exchange"] = exchange
    if queues:
        payload["queues"] = [*queues]
    payload["properties"] = {name: properties[name] for name in PROPERTIES if properties.get(name) not in (None, "")}
    return payload


class TaskMessage(Message):
    """A claimed message as it is sent: its payload is the body of the task message. Its `queues` are declared first."""

    content_type: str
    content_encoding: str
    exchange: str
    queues: Sequence[str]
    properties: Mapping[str, Any]


def unpack(message: Message) -> TaskMessage:
    """Return the task message that a claimed message holds."""
    if not (message.headers.get("task") and message.headers.get("id")):
        raise NotATask("its headers have no task and id")
    try:
        payload = json.loads(message.payload)
        body = payload["body"]
        encoded = base64.b64decode(body, validate=True) if payload.get("base64") else body.encode()
        task = TaskMessage(*message[:5], encoded, *message[6:])
        task.content_type = payload.get("content_type", CONTENT_TYPE)
        task.content_encoding = payload.get("content_encoding", CONTENT_ENCODING)
        task.exchange = payload.get("exchange", "")
        task.queues = payload.get("queues", ())
        task.properties = payload["properties"]
    except (AttributeError, KeyError, TypeError, ValueError, binascii.Error) as error:
        raise NotATask(f"its payload cannot be read ({type(error).__name__})") from error
    return task
