"""Encode messages as entries of SendMessageBatch and PublishBatch, before anything is sent.

A message that AWS cannot carry is rejected alone, instead of its whole request.
"""

import datetime
import hashlib
import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.cloudevents import CLOUDEVENTS, EXTENSIONS, STRUCTURED_CONTENT_TYPE, structured
from django_outbox.brokers.options import Template
from django_outbox.brokers.text_headers import CONTENT_TYPE, KEY, MESSAGE_ID, OCCURRED_AT, TYPE, to_text
from django_outbox.messages import Message

HEADERS = "outbox-headers"
"""The attribute with all headers of a message as one JSON object, because a message has at most ten attributes."""

FIFO_SUFFIX = ".fifo"
"""Suffix of the name of every FIFO queue and FIFO topic, and of no other one."""

_UNENCODABLE = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""A character that is not one of XML 1.0, which AWS refuses:
https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/quotas-messages.html"""

_NONCHARACTERS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")
"""The only ones of these characters in a payload: JSON has no control characters, and UTF-8 no surrogates."""

_GROUP = re.compile(r"[A-Za-z0-9!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]{1,128}")
"""https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_SendMessageBatchRequestEntry.html"""

_NAME = re.compile(r"(?:^|[/:])[A-Za-z0-9_-]{1,256}(?:\.fifo)?$")
"""https://docs.aws.amazon.com/AWSSimpleQueueService/latest/APIReference/API_CreateQueue.html
https://docs.aws.amazon.com/sns/latest/api/API_CreateTopic.html"""

_NAME_REMEDY = (
    "queues and topics have letters, digits, - and _ in their names: give the message a topic that is such a name"
)

_STRING = "String"


class Entry(NamedTuple):
    """A message as an entry of a batch request; `size` is the bytes that count towards its limits."""

    destination: str
    size: int
    fields: dict[str, Any]


class AWSEncoder:
    """Encodes messages for one service.

    Args:
        max_bytes: maximum size of a message in bytes, with its attributes.
    """

    def __init__(self, destination: Template, max_bytes: int, *, body_name: str, format: str, source: str) -> None:
        self.destination = destination
        self._max_bytes = max_bytes
        self._body_name = body_name
        # There are usually few destinations.
        self._check_name = lru_cache(maxsize=1000)(_check_name)
        self._source = source if format == CLOUDEVENTS else None
        content_type = "application/json" if self._source is None else STRUCTURED_CONTENT_TYPE
        self._content_type = _attribute(content_type)
        self._content_type_size = _size(CONTENT_TYPE, content_type)

    def encode(self, message: Message) -> Entry:
        destination = self._check_name(self.destination.render(message))
        values = {
            MESSAGE_ID: message.message_id,
            TYPE: _require_encodable("type", message.type),
            OCCURRED_AT: message.occurred_at.astimezone(datetime.timezone.utc).isoformat(),
        }
        if message.key:
            values[KEY] = _require_encodable("key", message.key)
        if message.headers:
            # ASCII only, so that no header is unencodable.
            values[HEADERS] = json.dumps(message.headers, separators=(",", ":"))
            for name in EXTENSIONS:
                text = to_text(message.headers.get(name, ""))
                if text and not _UNENCODABLE.search(text):
                    values[name] = text
        payload = message.payload if self._source is None else structured(message, self._source)
        if any(each in payload for each in _NONCHARACTERS):
            raise Unencodable("the payload has a character that XML 1.0 does not allow, U+FFFE or U+FFFF")
        attributes = {CONTENT_TYPE: self._content_type}
        size = len(payload) + self._content_type_size
        for name, value in values.items():
            attributes[name] = _attribute(value)
            size += _size(name, value)
        fields: dict[str, Any] = {"Id": "", self._body_name: payload.decode(), "MessageAttributes": attributes}
        if size > self._max_bytes:
            reason = f"it has {size:,} bytes with its attributes; max_message_bytes is {self._max_bytes:,}"
            raise Unencodable(reason, "too_large")
        if destination.endswith(FIFO_SUFFIX):
            # Messages of a group arrive one after the other. Those without a key are not in order with any other one.
            fields["MessageGroupId"] = group_id(message.key) if message.key else message.message_id
            fields["MessageDeduplicationId"] = message.message_id
        return Entry(destination, size, fields)


def group_id(key: str) -> str:
    """Return the MessageGroupId for a key: the key, or a hash if it is too long or has characters beyond ASCII."""
    if _GROUP.fullmatch(key):
        return key
    return f"sha256-{hashlib.sha256(key.encode()).hexdigest()}"


def _check_name(destination: str) -> str:
    if not _NAME.search(destination):
        raise Unencodable(f"{destination!r} does not end with a valid name; {_NAME_REMEDY}", "missing")
    return destination


def _attribute(value: str) -> dict[str, str]:
    return {"DataType": _STRING, "StringValue": value}


def _size(name: str, value: str) -> int:
    return len(name) + len(_STRING) + (len(value) if value.isascii() else len(value.encode()))


def _require_encodable(part: str, text: str) -> str:
    found = _UNENCODABLE.search(text)
    if found is not None:
        raise Unencodable(f"the {part} has a character that XML 1.0 does not allow, U+{ord(found[0]):04X}")
    return text
