"""Between pika and the socket: messages are written many at a time, and confirms are read without pika's frame objects.

pika's `basic_publish` writes three pieces a message to the socket, each with a system call of its own, and makes some
ten objects of each confirm. Everything but messages and confirms is left to pika; both ways go through the interfaces
that pika has for other event loops (`pika.adapters.utils.nbio_interface`).
"""

import struct
import time
from collections.abc import Callable
from socket import socket
from ssl import SSLContext

from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

OnConfirms = Callable[[int, bool, int, bool], None]
"""Gets the channel's number, whether it is an ack, the delivery tag, and whether all up to it are meant."""

PASS_ON_INTERVAL = 0.5
"""Seconds after which pika hears from the broker again; the shortest heartbeat is one second."""

FRAME_HEAD = struct.Struct(">BHI")
CONFIRM = struct.Struct(">BHIHHQBB")
"""A frame with basic.ack or basic.nack: type, channel, size, class, method, delivery tag, flags and the end."""

METHOD_FRAME, LAST_FRAME_TYPE = 1, 8
BASIC, ACK, NACK = 60, 80, 120
FRAME_END = 0xCE
CONFIRM_SIZE = CONFIRM.size - FRAME_HEAD.size - 1
MULTIPLE = 1


class Wire(AbstractStreamProtocol):
    """Stands between the socket and pika's connection, and reads the confirms itself.

    All else goes on to pika, whole frames in their order, so that what came before a confirm is known when that is
    told.

    Args:
        connection: pika's end.
        on_confirm: called for each confirm.
    """

    def __init__(self, connection: AbstractStreamProtocol, on_confirm: OnConfirms) -> None:
        self.connection = connection
        self._on_confirm = on_confirm
        self._rest = b""
        self._pass_on_at = 0.0

    def connection_made(self, transport: AbstractStreamTransport) -> None:
        self.connection.connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self.connection.connection_lost(error)

    def eof_received(self) -> bool | None:
        return self.connection.eof_received()

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        start, position, end = 0, 0, len(data)
        # pika takes a connection as dead from which it hears nothing for long, so that it gets a confirm now and then.
        pass_on = time.monotonic() >= self._pass_on_at
        while end - position >= FRAME_HEAD.size:
            kind, channel, size = FRAME_HEAD.unpack_from(data, position)
            if not 0 < kind <= LAST_FRAME_TYPE:
                # Not AMQP 0-9-1: pika knows what to say.
                position = end
                break
            following = position + FRAME_HEAD.size + size + 1
            if following > end:
                break
            if kind == METHOD_FRAME and size == CONFIRM_SIZE and not pass_on:
                *_, cls, method, tag, flags, last = CONFIRM.unpack_from(data, position)
                if cls == BASIC and method in (ACK, NACK) and last == FRAME_END:
                    if start < position:
                        self.connection.data_received(data[start:position])
                    start = following
                    self._on_confirm(channel, method == ACK, tag, bool(flags & MULTIPLE))
            position, pass_on = following, False
        self._rest = data[position:]
        if start < position:
            self._pass_on_at = time.monotonic() + PASS_ON_INTERVAL
            self.connection.data_received(data[start:position])


class WireServices(SelectorIOServicesAdapter):
    """pika's event loop, with a `Wire` in each connection that it makes.

    Args:
        loop: what it runs on.
        on_confirm: called for each confirm.
    """

    def __init__(self, loop: IOLoop, on_confirm: OnConfirms) -> None:
        super().__init__(loop)  # type: ignore[arg-type]
        self._on_confirm = on_confirm
        self._transport: AbstractStreamTransport | None = None

    def create_streaming_connection(
        self,
        protocol_factory: Callable[[], AbstractStreamProtocol],
        sock: socket,
        on_done: Callable[[tuple[AbstractStreamTransport, AbstractStreamProtocol] | BaseException], None],
        ssl_context: SSLContext | None = None,
        server_hostname: str | None = None,
    ) -> AbstractIOReference:
        def done(result: tuple[AbstractStreamTransport, AbstractStreamProtocol] | BaseException) -> None:
            if isinstance(result, tuple) and isinstance(wire := result[1], Wire):
                self._transport = result[0]
                result = (self._transport, wire.connection)
            on_done(result)

        return super().create_streaming_connection(
            lambda: Wire(protocol_factory(), self._on_confirm), sock, done, ssl_context, server_hostname
        )

    def write(self, data: bytes) -> None:
        """Send bytes behind all that pika has sent before."""
        assert self._transport is not None
        self._transport.write(data)
