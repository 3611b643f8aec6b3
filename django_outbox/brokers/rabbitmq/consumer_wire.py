"""Between pika and the socket: read deliveries without pika's frame objects, and headers without its mistakes.

pika reads a floating-point number in a header as a whole number. Everything but deliveries is left to pika. This uses
the interfaces that pika provides for other event loops (`pika.adapters.utils.nbio_interface`).
"""

import struct
from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

from pika.adapters.utils.nbio_interface import AbstractStreamProtocol
from pika.frame import Heartbeat

from django_outbox.brokers.rabbitmq.frames import (
    BASIC,
    BODY,
    FRAME_START,
    HEADER,
    MAX_FRAME_TYPE,
    METHOD,
)
from django_outbox.brokers.rabbitmq.wire import Wire

DELIVER = 60
"""The method of the class `basic` with which the broker delivers a message."""

METHOD_START = struct.Struct(">HH")
"""The start of a method: class and method."""

HEADER_START = struct.Struct(">HHQ")
"""The start of a header: class, weight and body size."""

TAG = struct.Struct(">QB")
"""Delivery tag, and whether the message was delivered before."""

HEARTBEAT = Heartbeat().marshal()

HEARTBEAT_INTERVAL = 0.5
"""Seconds between two heartbeats that are passed on to pika while deliveries arrive, because it considers a connection
dead if it receives nothing for a while."""


class Delivery(NamedTuple):
    """A message as it came over the wire.

    Args:
        tag: the delivery tag.
        routing_key: the routing key.
        properties: the property flags and the property list.
        body: the body.
    """

    tag: int
    routing_key: bytes
    properties: bytes
    body: bytes


class DeliveryWire(Wire):
    """Reads deliveries; all other frames are passed on to pika, in order.

    Args:
        connection: pika's connection.
        on_delivery: called for each message.
    """

    def __init__(self, connection: AbstractStreamProtocol, on_delivery: Callable[[Delivery], object]) -> None:
        super().__init__(connection)
        self._on_delivery = on_delivery
        self._rest = b""
        self._heartbeat_at = 0.0
        # The message being received. There is one channel, so its frames are not mixed with those of another one.
        self._method = b""
        self._properties = b""
        self._missing = 0
        self._parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        start, position, end = 0, 0, len(data)
        while end - position >= FRAME_START.size:
            kind, _channel, size = FRAME_START.unpack_from(data, position)
            if not 0 < kind <= MAX_FRAME_TYPE:
                # Not AMQP 0-9-1: pika reports the error.
                position = end
                break
            content = position + FRAME_START.size
            following = content + size + 1
            if following > end:
                break
            if self._is_delivery(kind, data, content):
                if start < position:
                    self.connection.data_received(data[start:position])
                start = following
                self._take(kind, data[content : following - 1])
            position = following
        self._rest = data[position:]
        if start < position:
            self.connection.data_received(data[start:position])
        elif start and monotonic() >= self._heartbeat_at:
            self._heartbeat_at = monotonic() + HEARTBEAT_INTERVAL
            self.connection.data_received(HEARTBEAT)

    def _is_delivery(self, kind: int, data: bytes, content: int) -> bool:
        if kind == METHOD:
            return METHOD_START.unpack_from(data, content) == (BASIC, DELIVER)
        return kind in (HEADER, BODY)

    def _take(self, kind: int, content: bytes) -> None:
        if kind == METHOD:
            self._method = content
            return
        if kind == HEADER:
            _, _, self._missing = HEADER_START.unpack_from(content)
            self._properties = content[HEADER_START.size :]
            self._parts = []
        else:
            self._parts.append(content)
            self._missing -= len(content)
        if not self._missing:
            tag, routing_key = _read_method(self._method)
            self._on_delivery(Delivery(tag, routing_key, self._properties, b"".join(self._parts)))
            self._parts = []


def _read_method(content: bytes) -> tuple[int, bytes]:
    """Return the delivery tag and the routing key: the consumer's tag comes first, and the exchange between them."""
    position = METHOD_START.size
    position += 1 + content[position]
    tag, _ = TAG.unpack_from(content, position)
    position += TAG.size
    position += 1 + content[position]
    return tag, content[position + 1 : position + 1 + content[position]]
