"""Between pika and the socket: the event loop, and the AMQP 0-9-1 frames that are read and written without pika.

pika's `basic_publish` writes a message in three pieces, each with its own system call, and creates about ten objects
for each confirm. Its reader creates as many for each delivery, and reads a floating-point number in a header as a whole
number. Everything but messages and confirms is left to pika. All of this uses the interfaces that pika provides for
other event loops (`pika.adapters.utils.nbio_interface`).
"""

import abc
import os
import re
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from ssl import SSLContext
from typing import Any, ClassVar, NamedTuple

from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter
from pika.frame import Heartbeat

METHOD, HEADER, BODY = 1, 2, 3
MAX_FRAME_TYPE = 8
"""The highest frame type that exists, a heartbeat."""

FRAME_START = struct.Struct(">BHI")
"""Type, channel and size of the content. `FRAME_END` follows the content."""

FRAME_END = 0xCE

BASIC = 60
"""The class of the methods `DELIVER`, and `ACK` and `NACK`, by which the broker confirms or refuses messages."""

METHOD_START = struct.Struct(">HH")
"""Class and method."""

DELIVER, ACK, NACK = (METHOD_START.pack(BASIC, method) for method in (60, 80, 120))

HEADER_START = struct.Struct(">HHQ")
"""Class, weight and body size."""

TAG = struct.Struct(">QB")
"""Delivery tag and flags."""

MULTIPLE = 1
"""The flag of a confirm that covers all messages up to its delivery tag."""

HEADER_FRAME_OVERHEAD = 20
"""Bytes of a header frame without the message's properties: frame start and end, class, weight and body size."""

BODY_FRAME_OVERHEAD = 8
"""Bytes of a body frame without the body: frame start and end."""

_END_BYTE = bytes([FRAME_END])
# The end of one frame together with the start of the next: one piece fewer to join per frame.
_END_AND_START = struct.Struct(">BBHI")
_END_AND_HEADER_START = struct.Struct(">BBHIHHQ")

_ACK = rb"\x00\x00\x00\x0d" + re.escape(ACK) + rb".{8}\x00\xce"
ACKS = re.compile(rb"\x01(..)" + _ACK + rb"(?:\x01\1" + _ACK + rb")*", re.DOTALL)
"""Whole frames of one channel, each of which confirms one message."""

ACKED = struct.Struct(">11xQ2x")
"""The delivery tag in such a frame."""

ConfirmHandler = Callable[[int, bool, Sequence[int], bool], None]
"""Takes the channel's number, whether it is an ack, the delivery tags, and whether it covers all up to the last one."""

HEARTBEAT_INTERVAL = 0.5
"""Seconds after which pika receives a heartbeat if it receives nothing else, because it would consider the connection
dead. The shortest heartbeat is 1 s."""

HEARTBEAT = Heartbeat().marshal()


def append_message(
    frames: list[bytes], channel: int, encoded: tuple[bytes, bytes], payload: bytes, frame_max: int
) -> None:
    """Append the frames of a message, in pieces, with the payload in several frames of `frame_max` bytes if necessary.

    `encoded` is the content of the method frame (`basic.publish` with its arguments), and the message's properties.
    """
    method, properties = encoded
    size = len(payload)
    max_part = frame_max - BODY_FRAME_OVERHEAD
    frames += (
        FRAME_START.pack(METHOD, channel, len(method)),
        method,
        _END_AND_HEADER_START.pack(FRAME_END, HEADER, channel, len(properties) + 12, BASIC, 0, size),
        properties,
    )
    for start in range(0, size, max_part):
        part = payload if size <= max_part else payload[start : start + max_part]
        frames += (_END_AND_START.pack(FRAME_END, BODY, channel, len(part)), part)
    frames.append(_END_BYTE)


class Delivered(NamedTuple):
    """A message as it came over the wire: `properties` are the property flags and the property list."""

    tag: int
    routing_key: bytes
    properties: bytes
    body: bytes


class Loop(IOLoop):
    """pika's event loop, which can also cut the connection, or stop reading from its socket for a while.

    pika itself can only close a connection with the broker's cooperation. RabbitMQ bounds what it delivers ahead in
    messages only, and a thousand of them may be many gigabytes. While the loop does not read, TCP slows the broker
    down.
    """

    def __init__(self) -> None:
        super().__init__()
        self._fd: int | None = None
        self._wanted = 0
        self._is_paused = False
        self._resumption: Any = None

    def add_handler(self, fd: int, handler: Callable[[int, int], None], events: int) -> None:
        self._fd, self._wanted = fd, events
        super().add_handler(fd, handler, events)

    def update_handler(self, fd: int, events: int) -> None:
        if fd == self._fd:
            self._wanted = events
            if self._is_paused:
                events &= ~self.READ
        super().update_handler(fd, events)

    def remove_handler(self, fd: int) -> None:
        if fd == self._fd:
            self._fd = None
        super().remove_handler(fd)

    def hang_up(self) -> None:
        """Shut the socket down and drop the data that has not left it yet. pika then notices the end."""
        if self._fd is None:
            return
        with suppress(OSError), socket.socket(fileno=os.dup(self._fd)) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.shutdown(socket.SHUT_RDWR)

    def pause_reading(self, max_seconds: float) -> None:
        """Read nothing from the socket until `resume_reading`, or for that long."""
        self._set_paused(True)
        # One timer at a time, because the timers of many pauses would together keep the socket open.
        if self._resumption is None:
            self._resumption = self.call_later(max_seconds, self.resume_reading)

    def resume_reading(self) -> None:
        if self._resumption is not None:
            self.remove_timeout(self._resumption)
            self._resumption = None
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if paused != self._is_paused:
            self._is_paused = paused
            if self._fd is not None:
                self.update_handler(self._fd, self._wanted)


class Wire(AbstractStreamProtocol):
    """Stands between the socket and pika's connection, which may have heartbeats.

    A subclass takes some frames itself: all of some `kinds`, and those with some `methods`. All others are passed on to
    pika, whole and in order.
    """

    kinds: ClassVar[tuple[int, ...]] = ()
    methods: ClassVar[tuple[bytes, ...]]

    def __init__(self, connection: AbstractStreamProtocol, *, has_heartbeats: bool) -> None:
        self.connection = connection
        self._has_heartbeats = has_heartbeats
        self._rest = b""
        self._heartbeat_at = 0.0

    def connection_made(self, transport: AbstractStreamTransport) -> None:
        self.connection.connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self.connection.connection_lost(error)

    def eof_received(self) -> bool | None:
        return self.connection.eof_received()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        kinds, methods = self.kinds, self.methods
        start, position, end = 0, 0, len(data)
        while end - position >= FRAME_START.size:
            kind, channel, size = FRAME_START.unpack_from(data, position)
            if not 0 < kind <= MAX_FRAME_TYPE:
                # Not AMQP 0-9-1: pika reports the error.
                position = end
                break
            content = position + FRAME_START.size
            following = content + size + 1
            if following > end:
                break
            if kind in kinds or (kind == METHOD and data.startswith(methods, content)):
                if start < position:
                    self.connection.data_received(data[start:position])
                start = following
                self._take(kind, channel, data[content : following - 1])
            position = following
        self._rest = data[position:]
        if start < position:
            self.connection.data_received(data[start:position])
        elif start:
            self._keep_alive()

    def _keep_alive(self) -> None:
        """Let pika know that the broker sends something."""
        if self._has_heartbeats and time.monotonic() >= self._heartbeat_at:
            self._heartbeat_at = time.monotonic() + HEARTBEAT_INTERVAL
            self.connection.data_received(HEARTBEAT)

    @abc.abstractmethod
    def _take(self, kind: int, channel: int, content: bytes) -> None: ...


class ConfirmWire(Wire):
    """Reads confirms. pika processes a return before the confirm that follows it."""

    methods = (ACK, NACK)

    def __init__(self, connection: AbstractStreamProtocol, on_confirm: ConfirmHandler, *, has_heartbeats: bool) -> None:
        super().__init__(connection, has_heartbeats=has_heartbeats)
        self._on_confirm = on_confirm

    def data_received(self, data: bytes) -> None:
        data, self._rest = self._rest + data, b""
        # Mostly nothing else comes: a quorum queue confirms most messages one by one. What follows is read as usual.
        if acks := ACKS.match(data):
            tags = [tag for (tag,) in ACKED.iter_unpack(acks[0])]
            self._on_confirm(int.from_bytes(acks[1], "big"), True, tags, False)
            self._keep_alive()
            data = data[acks.end() :]
        super().data_received(data)

    def _take(self, kind: int, channel: int, content: bytes) -> None:
        tag, flags = TAG.unpack_from(content, METHOD_START.size)
        self._on_confirm(channel, content.startswith(ACK), [tag], bool(flags & MULTIPLE))


class DeliveryWire(Wire):
    """Reads deliveries. There is one channel, so the frames of two messages are never mixed."""

    kinds = (HEADER, BODY)
    methods = (DELIVER,)

    def __init__(
        self, connection: AbstractStreamProtocol, on_delivery: Callable[[Delivered], object], *, has_heartbeats: bool
    ) -> None:
        super().__init__(connection, has_heartbeats=has_heartbeats)
        self._on_delivery = on_delivery
        # The message being received.
        self._method = b""
        self._properties = b""
        self._missing = 0
        self._parts: list[bytes] = []

    def _take(self, kind: int, channel: int, content: bytes) -> None:
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
            self._on_delivery(Delivered(tag, routing_key, self._properties, b"".join(self._parts)))
            self._parts = []


class WireServices(SelectorIOServicesAdapter):
    """pika's adapter for its event loop, with a `Wire` in each connection that it opens."""

    def __init__(self, loop: Loop, make_wire: Callable[[AbstractStreamProtocol], Wire]) -> None:
        super().__init__(loop)  # type: ignore[arg-type]
        self._make_wire = make_wire
        self._transport: AbstractStreamTransport | None = None
        self._socket: socket.socket | None = None

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], AbstractStreamProtocol],
        sock: socket.socket,
        on_done: Callable[[tuple[AbstractStreamTransport, AbstractStreamProtocol] | BaseException], None],
        ssl_context: SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> AbstractIOReference:
        def done(result: tuple[AbstractStreamTransport, AbstractStreamProtocol] | BaseException) -> None:
            if isinstance(result, tuple) and isinstance(wire := result[1], Wire):
                self._transport = result[0]
                self._socket = None if ssl_context else sock
                result = (self._transport, wire.connection)
            on_done(result)

        return super().create_streaming_connection(
            lambda: self._make_wire(protocol_factory()), sock, done, ssl_context, server_hostname
        )

    def write(self, data: bytes) -> None:
        """Send bytes after everything that pika has sent before."""
        assert self._transport is not None
        if self._socket is not None and not self._transport.get_write_buffer_size():
            # Mostly there is room. pika would ask the kernel whether there is, in another round of its loop. If the
            # connection is lost, pika finds out by itself.
            with suppress(OSError):
                data = data[self._socket.send(data) :]
        if data:
            self._transport.write(data)


def _read_method(content: bytes) -> tuple[int, bytes]:
    # The consumer's tag comes before the delivery tag, and the exchange between it and the routing key.
    position = METHOD_START.size
    position += 1 + content[position]
    tag, _ = TAG.unpack_from(content, position)
    position += TAG.size
    position += 1 + content[position]
    return tag, content[position + 1 : position + 1 + content[position]]
