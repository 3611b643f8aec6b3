"""Encode messages as entries of SendMessageBatch and PublishBatch, before anything is sent."""

import hashlib
import json
import re
from typing import Any, NamedTuple

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.cloudevents import EXTENSIONS
from django_outbox.brokers.options import Template
from django_outbox.brokers.text_headers import CONTENT_TYPE, KEY, MESSAGE_ID, OCCURRED_AT, TYPE, format_time, to_text
from django_outbox.messages import Message, delivery_id

HEADERS = "outbox-headers"
"""The attribute with all headers of a message as one JSON object, because a message has at most ten attributes."""

FIFO_SUFFIX = ".fifo"
"""Suffix of the name of every FIFO queue and FIFO topic, and of no other one."""

_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
"""https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatchRequestEntry.html"""

_STRING = "String"


class Entry(NamedTuple):
    """A message as an entry of a batch request; `size` is the bytes that count towards its limits."""

    destination: str
    size: int
    fields: dict[str, Any]


class AWSEncoder:
    """Encodes messages for one service, with at most `max_bytes` each, attributes included."""

    def __init__(self, destination: Template, max_bytes: int, body_name: str) -> None:
        self.destination = destination
        self._max_bytes = max_bytes
        self._body_name = body_name

    def encode(self, message: Message) -> Entry:
        destination = self.destination.render(message)
        values = {
            MESSAGE_ID: message.message_id,
            TYPE: message.type,
            OCCURRED_AT: format_time(message.occurred_at),
            CONTENT_TYPE: "application/json",
        }
        if message.key:
            values[KEY] = message.key
        if message.headers:
            # ASCII only, because AWS refuses some characters, and the whole request because of one.
            values[HEADERS] = json.dumps(message.headers, separators=(",", ":"))
            for name in EXTENSIONS:
                text = to_text(message.headers.get(name, ""))
                if text and text.isascii() and text.isprintable():
                    values[name] = text
        attributes = {name: {"DataType": _STRING, "StringValue": value} for name, value in values.items()}
        payload = message.payload
        size = len(payload) + sum(_size(name, value) for name, value in values.items())
        fields: dict[str, Any] = {"Id": "", self._body_name: payload.decode(), "MessageAttributes": attributes}
        if size > self._max_bytes:
            reason = f"it has {size:,} bytes with its attributes; max_message_bytes is {self._max_bytes:,}"
            raise Unencodable(reason, "too_large")
        if destination.endswith(FIFO_SUFFIX):
            # Messages of a group arrive one after the other. Those without a key are not in order with any other one.
            fields["MessageGroupId"] = group_id(message.key) if message.key else message.message_id
            fields["MessageDeduplicationId"] = delivery_id(message.message_id, message.headers)
        return Entry(destination, size, fields)


def group_id(key: str) -> str:
    """Return the MessageGroupId for a key: the key, or a hash if it is too long or has characters beyond ASCII."""
    if _GROUP.fullmatch(key):
        return key
    return f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"


def _size(name: str, value: str) -> int:
    return len(name) + len(_STRING) + (len(value) if value.isascii() else len(value.encode()))
