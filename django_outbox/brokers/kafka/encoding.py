"""Encode messages as Kafka's records."""

from collections.abc import Callable
from typing import Any

from django_outbox.brokers.cloudevents import BINARY, STRUCTURED, STRUCTURED_CONTENT_TYPE, attributes, structured
from django_outbox.brokers.options import Template
from django_outbox.brokers.text_headers import CONTENT_TYPE, own_headers, text_headers
from django_outbox.messages import Message

PREFIX = "ce_"
"""Prefix of the headers that carry the attributes of a CloudEvent, by its binding for Kafka:
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md."""


Headers = list[tuple[str, str | bytes | None]]

Record = tuple[str, bytes | None, bytes | None, Headers]
"""A message as a record: topic, value, key and headers. Without a key it may go to any partition.

A plain tuple, because one is made for each message.
"""


def make_encoder(topic: Template, format: str, source: str) -> Callable[[Message], Record]:
    """Return the function that encodes a message.

    It raises an exception if the message cannot be encoded.

    Args:
        topic: the name of the topic.
        format: one of the formats of `django_outbox.brokers.cloudevents`.
        source: the source of CloudEvents.
    """

    def encode_plain(message: Message) -> Record:
        headers: Any = text_headers(message)
        return (render(message), message.payload, message.key.encode() or None, headers)

    def encode_binary(message: Message) -> Record:
        headers: Headers = [(PREFIX + name, value) for name, value in attributes(message, source).items()]
        headers.append((CONTENT_TYPE, "application/json"))
        headers += _other_headers(message)
        return (render(message), message.payload, message.key.encode() or None, headers)

    def encode_structured(message: Message) -> Record:
        headers: Headers = [(CONTENT_TYPE, STRUCTURED_CONTENT_TYPE), *_other_headers(message)]
        return (render(message), structured(message, source), message.key.encode() or None, headers)

    render = topic.render
    return {BINARY: encode_binary, STRUCTURED: encode_structured}.get(format, encode_plain)


def _other_headers(message: Message) -> list[tuple[str, str]]:
    """Return the message's own headers, without those that would be read as attributes of the event."""
    return [(name, value) for name, value in own_headers(message) if not name.lower().startswith(PREFIX)]
