"""How a message looks in AMQP 0-9-1: its frames, encoded ahead of sending.

Encoding here finds a message that AMQP cannot carry before anything of it is sent, so that it is refused alone. pika's
own encoder knows no floats, which JSON headers may well have: they go as AMQP doubles. And it takes several times as
long, for it makes objects of what are a few bytes.
"""

import struct
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

from pika import BasicProperties
from pika.spec import Basic

from django_outbox.messages import Message

FRAME_OVERHEAD = 20
"""Bytes of a content header frame beside the properties: its own header and end, class, weight and body size."""

FRAME_OVERHEAD_OF_BODY = 8
"""Bytes of a body frame beside the body: its own header and end."""

MAX_SHORT_STRING = 255
"""Bytes of UTF-8 that fit into an AMQP short string: names, routing keys and most properties."""

ROUTING_HEADERS = ("CC", "BCC")
"""Headers that RabbitMQ reads further routing keys from; it closes the channel on one that is no list."""


class Unencodable(ValueError):
    """AMQP cannot carry the message; the text says which part and why."""


class Encoded(NamedTuple):
    """What a message is in AMQP beside its payload, which is sent as it is.

    Args:
        method: the arguments of `basic.publish`.
        properties: the property flags and the property list of the content header.
    """

    method: bytes
    properties: bytes

    @property
    def header_size(self) -> int:
        """Bytes of the content header frame; it cannot be split, unlike the body."""
        return FRAME_OVERHEAD + len(self.properties)


class Encoder:
    """Encodes messages for one exchange.

    Args:
        exchange: its name.
        mandatory: whether a message that reaches no queue comes back.
        persistent: whether a message survives a restart of the broker.
        key_header: the name of the header that carries the message's key.
    """

    def __init__(self, *, exchange: str, mandatory: bool, persistent: bool, key_header: str) -> None:
        self._exchange = exchange
        self._mandatory = mandatory
        self._delivery_mode = b"\x02" if persistent else b"\x01"
        self._key_header = key_header
        self._key_name = _short_string("key_header", key_header)
        # Types and topics are few, as a rule.
        self._method = lru_cache(maxsize=1000)(self._encode_method)
        self._type = lru_cache(maxsize=1000)(partial(_short_string, "type"))

    def encode(self, message: Message) -> Encoded:
        """Encode a message; its key goes into the header `key_header`, unless it is blank.

        Raises:
            Unencodable: AMQP cannot carry it.
        """
        flags, headers, correlation_id = _FLAGS, b"", b""
        if message.headers:
            headers = _encode_headers(message.headers, leave_out=self._key_header if message.key else None)
            value = message.headers.get("correlation_id")
            if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= MAX_SHORT_STRING:
                flags = _FLAGS_WITH_CORRELATION_ID
                correlation_id = _short_string("headers['correlation_id']", value)
        if message.key:
            key = message.key.encode()
            headers += self._key_name + b"S" + len(key).to_bytes(4, "big") + key
        try:
            timestamp = _TIMESTAMP.pack(int(message.occurred_at.timestamp()))
        except (struct.error, OverflowError):
            raise Unencodable("occurred_at is before 1970, which AMQP timestamps cannot tell") from None
        properties = (
            flags,
            len(headers).to_bytes(4, "big"),
            headers,
            self._delivery_mode,
            correlation_id,
            _MESSAGE_ID_LENGTH,
            message.message_id.encode(),
            timestamp,
            self._type(message.type),
        )
        return Encoded(self._method(message.destination), b"".join(properties))

    def _encode_method(self, routing_key: str) -> bytes:
        # What pika would raise for a name that is too long names neither the part nor the limit.
        _short_string("the routing key (topic, or type)", routing_key)
        publish = Basic.Publish(exchange=self._exchange, routing_key=routing_key, mandatory=self._mandatory)
        return Basic.Publish.INDEX.to_bytes(4, "big") + b"".join(publish.encode())


def append_frames(frames: list[bytes], channel: int, encoded: Encoded, payload: bytes, max_size: int) -> None:
    """Append the frames of a message, in pieces.

    Args:
        frames: where to.
        channel: the number of the channel.
        encoded: the message.
        payload: its body.
        max_size: the most bytes of a frame, as agreed with the broker.
    """
    method, properties = encoded
    size = len(payload)
    room = max_size - FRAME_OVERHEAD_OF_BODY
    frames += (
        _HEAD.pack(_METHOD, channel, len(method)),
        method,
        _CONTENT_HEAD.pack(_END, _HEADER, channel, len(properties) + 12, Basic.INDEX, 0, size),
        properties,
    )
    for start in range(0, size, room):
        part = payload if size <= room else payload[start : start + room]
        frames += (_NEXT_HEAD.pack(_END, _BODY, channel, len(part)), part)
    frames.append(_LAST)


def _encode_headers(headers: Mapping[str, Any], *, leave_out: str | None) -> bytes:
    pieces = []
    for name, value in headers.items():
        if name == leave_out:
            continue
        if name in ROUTING_HEADERS and not isinstance(value, list):
            raise Unencodable(f"headers[{name!r}] must be a list: RabbitMQ reads routing keys from it")
        try:
            pieces.append(_short_string("its name", name))
            pieces.append(_encode_value(value))
        except Unencodable as error:
            raise Unencodable(f"headers[{name!r}]: {error}") from None
        except UnicodeEncodeError:
            raise Unencodable(f"headers[{name!r}]: a lone surrogate is no text in UTF-8") from None
        except RecursionError:
            raise Unencodable(f"headers[{name!r}]: it is nested too deeply") from None
    return b"".join(pieces)


def _encode_value(value: Any) -> bytes:
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise Unencodable(f"a {type(value).__name__} is no JSON value")
    return encoder(value)


def _encode_int(value: int) -> bytes:
    if -(2**31) <= value < 2**31:
        return struct.pack(">ci", b"I", value)
    if -(2**63) <= value < 2**63:
        return struct.pack(">cq", b"l", value)
    raise Unencodable("an integer beyond 64 bits, the most that AMQP carries; send it as a string")


def _encode_dict(value: dict[str, Any]) -> bytes:
    pieces = [_short_string("a name in it", name) + _encode_value(inner) for name, inner in value.items()]
    return b"F" + _with_length(b"".join(pieces))


_ENCODERS: dict[type, Callable[[Any], bytes]] = {
    str: lambda value: b"S" + _with_length(value.encode()),
    bool: lambda value: b"t\x01" if value else b"t\x00",
    int: _encode_int,
    float: lambda value: struct.pack(">cd", b"d", value),
    type(None): lambda _value: b"V",
    list: lambda value: b"A" + _with_length(b"".join(map(_encode_value, value))),
    dict: _encode_dict,
}


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def _short_string(what: str, value: str) -> bytes:
    try:
        data = value.encode()
    except UnicodeEncodeError:
        raise Unencodable(f"{what} has a lone surrogate, which is no text in UTF-8") from None
    if len(data) > MAX_SHORT_STRING:
        raise Unencodable(f"{what} is {len(data)} bytes long in UTF-8; the limit of AMQP is {MAX_SHORT_STRING}")
    return len(data).to_bytes(1, "big") + data


_CONTENT = _short_string("content_type", "application/json") + _short_string("content_encoding", "utf-8")
_SET = (
    BasicProperties.FLAG_CONTENT_TYPE
    | BasicProperties.FLAG_CONTENT_ENCODING
    | BasicProperties.FLAG_HEADERS
    | BasicProperties.FLAG_DELIVERY_MODE
    | BasicProperties.FLAG_MESSAGE_ID
    | BasicProperties.FLAG_TIMESTAMP
    | BasicProperties.FLAG_TYPE
)
_FLAGS = _SET.to_bytes(2, "big") + _CONTENT
_FLAGS_WITH_CORRELATION_ID = (_SET | BasicProperties.FLAG_CORRELATION_ID).to_bytes(2, "big") + _CONTENT
_MESSAGE_ID_LENGTH = b"\x24"
_TIMESTAMP = struct.Struct(">Q")

_METHOD, _HEADER, _BODY = 1, 2, 3
_END = 0xCE
_LAST = bytes([_END])
_HEAD = struct.Struct(">BHI")
_NEXT_HEAD = struct.Struct(">BBHI")
_CONTENT_HEAD = struct.Struct(">BBHIHHQ")
