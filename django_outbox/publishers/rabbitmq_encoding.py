"""How a message looks in AMQP: its properties, encoded ahead of sending.

Encoding here finds a message that AMQP cannot carry before anything of it is sent, so that it is refused alone. And
pika's own encoder knows no floats, which JSON headers may well have: they go as AMQP doubles.
"""

import struct
from collections.abc import Callable, Mapping
from typing import Any

from pika import BasicProperties

from django_outbox.messages import Message

FRAME_OVERHEAD = 20
"""Bytes of a content header frame beside the properties: its own header and end, class, weight and body size."""

MAX_SHORT_STRING = 255
"""Bytes of UTF-8 that fit into an AMQP short string: names, routing keys and most properties."""

ROUTING_HEADERS = ("CC", "BCC")
"""Headers that RabbitMQ reads further routing keys from; it closes the channel on one that is no list."""


class Unencodable(ValueError):
    """AMQP cannot carry the message; the text says which part and why."""


class EncodedProperties(BasicProperties):
    """Properties that pika sends as they are.

    Args:
        encoded: the property flags and the property list of the content header.
    """

    def __init__(self, encoded: bytes) -> None:
        self.encoded = encoded

    def encode(self) -> list[bytes]:
        return [self.encoded]

    @property
    def frame_size(self) -> int:
        """Bytes of the content header frame; it cannot be split, unlike the body."""
        return FRAME_OVERHEAD + len(self.encoded)


def encode_properties(message: Message, *, persistent: bool, key_header: str) -> EncodedProperties:
    """Encode the properties of `message`; its key goes into the header `key_header`, unless it is blank.

    Raises:
        Unencodable: AMQP cannot carry the message.
    """
    headers: Mapping[str, Any] = message.headers
    flags = _FLAGS
    correlation_id = b""
    if headers:
        for name in ROUTING_HEADERS:
            if name in headers and not isinstance(headers[name], list):
                raise Unencodable(f"headers[{name!r}] must be a list: RabbitMQ reads routing keys from it")
        value = headers.get("correlation_id")
        if isinstance(value, str) and len(value.encode("utf-8", "replace")) <= MAX_SHORT_STRING:
            flags |= BasicProperties.FLAG_CORRELATION_ID
            correlation_id = _short_string("headers['correlation_id']", value)
    if message.key:
        headers = {**headers, key_header: message.key}
    _short_string("the routing key (topic, or type)", message.destination)
    try:
        timestamp = struct.pack(">Q", int(message.occurred_at.timestamp()))
    except (struct.error, OverflowError):
        raise Unencodable("occurred_at is before 1970, which AMQP timestamps cannot tell") from None
    return EncodedProperties(
        b"".join(
            (
                flags.to_bytes(2, "big"),
                _CONTENT,
                _encode_headers(headers),
                b"\x02" if persistent else b"\x01",
                correlation_id,
                _short_string("message_id", str(message.message_id)),
                timestamp,
                _short_string("type", message.type),
            )
        )
    )


def _encode_headers(headers: Mapping[str, Any]) -> bytes:
    pieces = []
    for name, value in headers.items():
        try:
            pieces.append(_short_string("its name", name))
            pieces.append(_encode_value(value))
        except Unencodable as error:
            raise Unencodable(f"headers[{name!r}]: {error}") from None
        except UnicodeEncodeError:
            raise Unencodable(f"headers[{name!r}]: a lone surrogate is no text in UTF-8") from None
        except RecursionError:
            raise Unencodable(f"headers[{name!r}]: it is nested too deeply") from None
    return _with_length(b"".join(pieces))


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


_FLAGS = (
    BasicProperties.FLAG_CONTENT_TYPE
    | BasicProperties.FLAG_CONTENT_ENCODING
    | BasicProperties.FLAG_HEADERS
    | BasicProperties.FLAG_DELIVERY_MODE
    | BasicProperties.FLAG_MESSAGE_ID
    | BasicProperties.FLAG_TIMESTAMP
    | BasicProperties.FLAG_TYPE
)
_CONTENT = _short_string("content_type", "application/json") + _short_string("content_encoding", "utf-8")
