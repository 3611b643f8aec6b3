"""Encode messages for AMQP 0-9-1 before anything is sent, so that a message that AMQP cannot carry is rejected alone.

pika's own encoder does not support floats, which JSON headers may contain (they are sent as AMQP doubles), and takes
several times as long, because it creates objects for a few bytes.
"""

import datetime
import math
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, NamedTuple

from pika.spec import Basic

from django_outbox.brokers import cloudevents
from django_outbox.brokers.call import Unencodable
from django_outbox.brokers.cloudevents import read_event
from django_outbox.brokers.consumer import Incoming
from django_outbox.brokers.rabbitmq.wire import HEADER_FRAME_OVERHEAD, Delivered
from django_outbox.brokers.text_headers import KEY
from django_outbox.messages import MAX_HEADERS_DEPTH, Message
from django_outbox.utils.text import describe

MAX_SHORT_STRING = 255
"""Maximum number of UTF-8 bytes of an AMQP short string: names, routing keys and most properties."""

EVENT_PREFIX = "ce-"
"""Prefix of the headers that are attributes of CloudEvents, in binary mode.

AMQP 0-9-1 has no binding of the CloudEvents project, which has one for AMQP 1.0 only. This is the RabbitMQ binding of
Knative, which the SDKs for Python and Go follow:
https://github.com/knative-extensions/eventing-rabbitmq/blob/main/cloudevents-protocol-spec/spec.md
"""

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

FLAGS = {name: 0x8000 >> index for index, name in enumerate(NAMES)}

NUMBERS = {"delivery_mode": struct.Struct(">B"), "priority": struct.Struct(">B"), "timestamp": struct.Struct(">Q")}
"""The properties that are numbers. All others are short strings, except the headers."""

_SENT = ("content_type", "content_encoding", "headers", "delivery_mode", "message_id", "timestamp", "type")
# Messages survive a restart of the broker in durable queues.
_PERSISTENT = b"\x02"
_MESSAGE_ID_LENGTH = b"\x24"

DELIVERY_COUNT = "x-delivery-count"
"""The header in which a quorum queue states how many times a message was returned."""


class Encoded(NamedTuple):
    """A message in AMQP without its payload, which is sent unchanged.

    `method` is `basic.publish` with its arguments; `properties` are the property flags and the property list.
    """

    method: bytes
    properties: bytes

    @property
    def header_size(self) -> int:
        """Bytes of the header frame; unlike the body, it cannot be split."""
        return HEADER_FRAME_OVERHEAD + len(self.properties)


def as_event(message: Message, source: str) -> Message:
    headers = {name: value for name, value in message.headers.items() if not name.lower().startswith(EVENT_PREFIX)}
    for name, value in cloudevents.attributes(message, source).items():
        headers[EVENT_PREFIX + name] = value
    return message._replace(headers=headers)


class RabbitMQEncoder:
    def __init__(self, *, exchange: str, mandatory: bool) -> None:
        content = short_string("content_type", "application/json") + short_string("content_encoding", "utf-8")
        flags = sum(FLAGS[name] for name in _SENT)
        self._start = flags.to_bytes(2, "big") + content
        # There are usually few types and topics.
        self._method = lru_cache(maxsize=1000)(partial(encode_publish, exchange, mandatory=mandatory))
        self._type = lru_cache(maxsize=1000)(partial(short_string, "type"))

    def encode(self, message: Message) -> Encoded:
        headers = encode_headers(message.headers) if message.headers else b""
        if message.key:
            key = message.key.encode()
            headers += _KEY_NAME + b"S" + len(key).to_bytes(4, "big") + key
        try:
            timestamp = NUMBERS["timestamp"].pack(int(message.occurred_at.timestamp()))
        except (struct.error, OverflowError):
            raise Unencodable("occurred_at is before 1970, which an AMQP timestamp cannot represent") from None
        properties = (
            self._start,
            len(headers).to_bytes(4, "big"),
            headers,
            _PERSISTENT,
            _MESSAGE_ID_LENGTH,
            message.message_id.encode(),
            timestamp,
            self._type(message.type),
        )
        return Encoded(self._method(message.topic or message.type), b"".join(properties))


def encode_publish(exchange: str, routing_key: str, *, mandatory: bool) -> bytes:
    # pika's own error for a name that is too long mentions neither the part nor the limit.
    short_string("the exchange", exchange)
    short_string("the routing key (topic, or type)", routing_key)
    publish = Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return Basic.Publish.INDEX.to_bytes(4, "big") + b"".join(publish.encode())


def encode_properties(properties: Mapping[str, Any]) -> bytes:
    """Return any properties as `decode_properties` reads them; one that is None is left out."""
    flags, pieces = 0, []
    for name, flag in FLAGS.items():
        value = properties.get(name)
        if value is None:
            continue
        flags |= flag
        if name == "headers":
            pieces.append(_with_length(encode_headers(value)))
        elif name in NUMBERS:
            pieces.append(_encode_number(name, value))
        else:
            pieces.append(short_string(name, str(value)))
    return flags.to_bytes(2, "big") + b"".join(pieces)


def _encode_number(name: str, value: Any) -> bytes:
    number = NUMBERS[name]
    limit = 256**number.size
    if not isinstance(value, int) or not 0 <= value < limit:
        raise Unencodable(f"{name} is {value!r}; it must be a number from 0 to {limit - 1}")
    return number.pack(value)


def encode_headers(headers: Mapping[str, Any]) -> bytes:
    """Encode headers, which are JSON values, as the fields of an AMQP table, without its length."""
    pieces = []
    for name, value in headers.items():
        if name == KEY:
            continue
        try:
            pieces.append(_header_name(name))
            pieces.append(_encode_value(value))
        except Unencodable as error:
            raise Unencodable(f"headers[{name!r}]: {error}") from None
    return b"".join(pieces)


def _encode_value(value: Any, depth: int = 1) -> bytes:
    """Encode a JSON value; `depth` is the number of tables and arrays around it."""
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value)
    if not isinstance(value, list | dict):
        raise Unencodable(f"an object of type {type(value).__name__} is not a JSON value")
    if depth == MAX_HEADERS_DEPTH:
        raise Unencodable(f"it is nested more than {MAX_HEADERS_DEPTH} levels deep")
    if isinstance(value, list):
        return b"A" + _with_length(b"".join([_encode_value(each, depth + 1) for each in value]))
    fields = [short_string("a name in it", name) + _encode_value(each, depth + 1) for name, each in value.items()]
    return b"F" + _with_length(b"".join(fields))


def _encode_int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return struct.pack(">ci", b"I", value)
    if -(2**63) <= value < 2**63:
        return struct.pack(">cq", b"l", value)
    # PostgreSQL writes a float such as 1e19 without its exponent, so Python reads it as an integer.
    with suppress(OverflowError):
        number = float(value)
        if value in (int(number), int(Decimal(repr(number)))):
            return _encode_float(number)
    raise Unencodable("an integer beyond 64 bits, the most that AMQP carries; send it as a string")


def _encode_float(value: float) -> bytes:
    # RabbitMQ closes the connection, with everything in flight, if it reads NaN or infinity.
    if not math.isfinite(value):
        raise Unencodable(f"{value} is not a number that RabbitMQ can read")
    return struct.pack(">cd", b"d", value)


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: lambda value: b"S" + _with_length(value.encode()),
    bool: lambda value: b"t\x01" if value else b"t\x00",
    int: _encode_int,
    float: _encode_float,
    type(None): lambda _value: b"V",
}


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def short_string(part: str, value: str) -> bytes:
    """Encode an AMQP short string; the error names the part."""
    data = value.encode()
    if len(data) > MAX_SHORT_STRING:
        raise Unencodable(f"{part} is {len(data)} bytes long in UTF-8; the limit of AMQP is {MAX_SHORT_STRING}")
    return len(data).to_bytes(1, "big") + data


# Most messages have the same few headers.
_header_name = lru_cache(maxsize=1000)(partial(short_string, "its name"))

_KEY_NAME = _header_name(KEY)


def read_delivery(delivery: Delivered) -> Incoming:
    problem = ""
    try:
        properties = decode_properties(delivery.properties)
    except Exception as error:
        # An exception would end the connection, and the broker would deliver the message again.
        properties = {}
        problem = f"its properties cannot be decoded: {describe(error)}"
    headers: dict[str, Any] = properties.get("headers", {})
    key = headers.pop(KEY, None)
    returns = headers.pop(DELIVERY_COUNT, 0)
    if "correlation_id" in properties:
        headers.setdefault("correlation_id", properties["correlation_id"])
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
    return read_event(incoming, properties.get("content_type", ""), EVENT_PREFIX)


def decode_properties(data: bytes) -> dict[str, Any]:
    """Return the properties of a message by name, given its property flags and its property list."""
    position = 2
    found: dict[str, Any] = {}
    for name, number in _fields(data[:2]):
        if number is not None:
            (found[name],) = number.unpack_from(data, position)
            position += number.size
        elif name == "headers":
            table, position = _long_bytes(data, position)
            found[name] = _table(table, 0)
        else:
            # As in `_short_string`, because a call for each property would take as long as the rest.
            end = position + 1 + data[position]
            found[name] = data[position + 1 : end].decode("utf-8", "backslashreplace")
            position = end
    return found


@lru_cache(maxsize=100)
def _fields(flags: bytes) -> list[tuple[str, struct.Struct | None]]:
    # Most senders set the same properties in all messages.
    bits = int.from_bytes(flags, "big")
    return [(name, NUMBERS.get(name)) for name, flag in FLAGS.items() if bits & flag]


def _short_string(data: bytes, position: int) -> tuple[str, int]:
    end = position + 1 + data[position]
    return _text(data[position + 1 : end]), end


def _long_bytes(data: bytes, position: int) -> tuple[bytes, int]:
    start = position + 4
    end = start + int.from_bytes(data[position:start], "big")
    if end > len(data):
        raise ValueError("a header ends too early")
    return data[start:end], end


def _value(data: bytes, position: int, depth: int) -> tuple[Any, int]:
    if depth == MAX_HEADERS_DEPTH:
        raise ValueError(f"a header is nested more than {MAX_HEADERS_DEPTH} levels deep")
    kind, position = data[position : position + 1], position + 1
    if kind in _FIXED_TYPES:
        fixed, read = _FIXED_TYPES[kind]
        return read(*fixed.unpack_from(data, position)), position + fixed.size
    if kind not in _LONG_TYPES:
        raise ValueError(f"a header has the unknown type {kind!r}")
    inner, end = _long_bytes(data, position)
    return _LONG_TYPES[kind](inner, depth + 1), end


def _table(data: bytes, depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    at = 0
    while at < len(data):
        name, at = _short_string(data, at)
        found[name], at = _value(data, at, depth)
    return found


def _array(data: bytes, depth: int) -> list[Any]:
    found: list[Any] = []
    at = 0
    while at < len(data):
        value, at = _value(data, at, depth)
        found.append(value)
    return found


@lru_cache(maxsize=100)
def _read_time(timestamp: int | None) -> datetime.datetime | None:
    if timestamp is None:
        return None
    try:
        return datetime.datetime.fromtimestamp(timestamp, datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        # Milliseconds, for example.
        return None


# RabbitMQ's types, which differ from the specification.
_LONG_TYPES: dict[bytes, Callable[[bytes, int], Any]] = {
    b"S": lambda data, _depth: _text(data),
    b"x": lambda data, _depth: _text(data),
    b"A": _array,
    b"F": _table,
}

_FIXED_TYPES: dict[bytes, tuple[struct.Struct, Callable[..., Any]]] = {
    b"t": (struct.Struct(">?"), bool),
    b"b": (struct.Struct(">b"), int),
    b"B": (struct.Struct(">B"), int),
    b"s": (struct.Struct(">h"), int),
    b"u": (struct.Struct(">H"), int),
    b"I": (struct.Struct(">i"), int),
    b"i": (struct.Struct(">I"), int),
    b"l": (struct.Struct(">q"), int),
    b"L": (struct.Struct(">q"), int),
    b"f": (struct.Struct(">f"), float),
    b"d": (struct.Struct(">d"), float),
    b"D": (struct.Struct(">Bi"), lambda scale, number: Decimal(number).scaleb(-scale)),
    b"T": (struct.Struct(">Q"), lambda seconds: _read_time(seconds) or seconds),
    b"V": (struct.Struct(""), lambda: None),
}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")
