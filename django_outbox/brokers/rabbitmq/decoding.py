"""Decode a message's AMQP properties."""

import datetime
import decimal
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from django_outbox.brokers.cloudevents import read_event
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.rabbitmq.wire import Delivered
from django_outbox.text import describe

CORRELATION_ID = "correlation_id"

DELIVERY_COUNT = "x-delivery-count"
"""The header in which a quorum queue states how many times a message was returned."""

EVENT_PREFIXES = ("ce-", "cloudEvents_", "cloudEvents:")
"""Prefixes of the headers that are attributes of CloudEvents, in binary mode.

Senders use Knative's binding for RabbitMQ (`ce-`), or the binding for AMQP 1.0, whose application properties RabbitMQ
passes on as headers (`cloudEvents_`, or formerly `cloudEvents:`):

https://github.com/knative-extensions/eventing-rabbitmq/blob/main/cloudevents-protocol-spec/spec.md
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/amqp-protocol-binding.md
"""

MAX_DEPTH = 100
"""Maximum nesting of a header."""

NAMES = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)
"""The properties in the order in which they are sent. The flags begin with the first at the highest bit."""

NUMBERS = {"delivery_mode": struct.Struct(">B"), "priority": struct.Struct(">B"), "timestamp": struct.Struct(">Q")}
"""The properties that are numbers. All others are short strings, except the headers."""


def read_delivery(delivery: Delivered, *, key_header: str) -> Incoming:
    """Return a message as the inbox reads it.

    The property `type` is the type; without it, the routing key is. The key is in a header. The property
    `correlation_id` becomes a header if there is none of that name. The attributes of a CloudEvent take precedence. If
    they cannot be decoded, the message's `problem` is the reason.
    """
    problem = ""
    try:
        properties = decode_properties(delivery.properties)
    except Exception as error:
        # An exception would end the connection, and the broker would deliver the message again.
        properties = {}
        problem = f"its properties cannot be decoded: {describe(error)}"
    headers = dict(properties.get("headers", {}))
    key = headers.pop(key_header, None)
    returns = headers.pop(DELIVERY_COUNT, 0)
    if CORRELATION_ID in properties and CORRELATION_ID not in headers:
        headers[CORRELATION_ID] = properties[CORRELATION_ID]
    topic = _text(delivery.routing_key)
    incoming = Incoming(
        tag=delivery.tag,
        body=delivery.body,
        message_id=properties.get("message_id", ""),
        type=properties.get("type") or topic,
        topic=topic,
        key="" if key is None else str(key),
        headers=headers,
        encoding=properties.get("content_encoding", ""),
        sent_at=_read_time(properties.get("timestamp")),
        problem=problem,
        returns=returns if isinstance(returns, int) else 0,
    )
    return read_event(incoming, properties.get("content_type", ""), EVENT_PREFIXES)


def decode_properties(data: bytes) -> dict[str, Any]:
    """Return the properties of a message by name, given its property flags and its property list."""
    position = 2
    found: dict[str, Any] = {}
    for name in _names(data[:2]):
        if name == "headers":
            found[name], position = _table(data, position, 0)
        elif name in NUMBERS:
            (found[name],) = NUMBERS[name].unpack_from(data, position)
            position += NUMBERS[name].size
        else:
            found[name], position = _short_string(data, position)
    return found


@lru_cache(maxsize=100)
def _names(flags: bytes) -> list[str]:
    # Most senders set the same properties in all messages.
    return [name for index, name in enumerate(NAMES) if int.from_bytes(flags, "big") & 0x8000 >> index]


Decoder = Callable[[bytes, int, int], tuple[Any, int]]
"""Takes data, a position in it and the depth, and returns a value and the position after it."""


def _number(format: str) -> Decoder:
    number = struct.Struct(format)

    def decode(data: bytes, position: int, depth: int) -> tuple[Any, int]:
        return number.unpack_from(data, position)[0], position + number.size

    return decode


def _short_string(data: bytes, position: int) -> tuple[str, int]:
    end = position + 1 + data[position]
    return _text(data[position + 1 : end]), end


def _long_bytes(data: bytes, position: int, depth: int = 0) -> tuple[bytes, int]:
    start = position + 4
    end = start + int.from_bytes(data[position:start], "big")
    if end > len(data):
        raise ValueError("a header ends too early")
    return data[start:end], end


def _long_string(data: bytes, position: int, depth: int) -> tuple[str, int]:
    value, end = _long_bytes(data, position)
    return _text(value), end


def _decimal(data: bytes, position: int, depth: int) -> tuple[decimal.Decimal, int]:
    scale = data[position]
    (number,) = struct.unpack_from(">i", data, position + 1)
    return decimal.Decimal(number).scaleb(-scale), position + 5


def _time(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    (seconds,) = struct.unpack_from(">Q", data, position)
    return _read_time(seconds) or seconds, position + 8


def _table(data: bytes, position: int, depth: int) -> tuple[dict[str, Any], int]:
    inner, end = _long_bytes(data, position)
    found: dict[str, Any] = {}
    at = 0
    while at < len(inner):
        name, at = _short_string(inner, at)
        found[name], at = _value(inner, at, depth)
    return found, end


def _array(data: bytes, position: int, depth: int) -> tuple[list[Any], int]:
    inner, end = _long_bytes(data, position)
    found: list[Any] = []
    at = 0
    while at < len(inner):
        value, at = _value(inner, at, depth)
        found.append(value)
    return found, end


def _value(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    if depth == MAX_DEPTH:
        raise ValueError(f"a header is nested more than {MAX_DEPTH} levels deep")
    kind = data[position : position + 1]
    if kind not in _DECODERS:
        raise ValueError(f"a header has the unknown type {kind!r}")
    return _DECODERS[kind](data, position + 1, depth + 1)


# RabbitMQ's types, which differ from the specification.
_DECODERS: dict[bytes, Decoder] = {
    b"t": _number(">?"),
    b"b": _number(">b"),
    b"B": _number(">B"),
    b"s": _number(">h"),
    b"u": _number(">H"),
    b"I": _number(">i"),
    b"i": _number(">I"),
    b"l": _number(">q"),
    b"L": _number(">q"),
    b"f": _number(">f"),
    b"d": _number(">d"),
    b"D": _decimal,
    b"S": _long_string,
    b"x": _long_string,
    b"A": _array,
    b"T": _time,
    b"F": _table,
    b"V": lambda data, position, depth: (None, position),
}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _read_time(timestamp: int | None) -> datetime.datetime | None:
    if timestamp is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Milliseconds, for example.
        return None
