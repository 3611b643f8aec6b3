"""Between pika and the socket: write many messages at once, and read confirms without pika's frame objects.

pika's `basic_publish` writes a message in three pieces, each with its own system call, and creates about ten objects
for each confirm. Everything but messages and confirms is left to pika. Both directions use the interfaces that pika
provides for other event loops (`pika.adapters.utils.nbio_interface`).
"""

import abc
import time
from collections.abc import Callable
from socket import socket
from ssl import SSLContext

from pika.adapters.select_connection import IOLoop
from pika.adapters.utils.nbio_interface import AbstractIOReference, AbstractStreamProtocol, AbstractStreamTransport
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

from django_outbox.brokers.rabbitmq.frames import (
    ACK,
    BASIC,
    CONFIRM,
    CONFIRM_SIZE,
    FRAME_END,
    FRAME_START,
    MAX_FRAME_TYPE,
    METHOD,
    MULTIPLE,
    NACK,
)

ConfirmHandler = Callable[[int, bool, int, bool], None]
"""Takes the channel's number, whether it is an ack, the delivery tag, and whether it covers all tags up to this one."""

PASS_ON_INTERVAL = 0.5
"""Maximum seconds between two frames that are passed on to pika, if frames arrive; the shortest heartbeat is 1 s."""


class Wire(AbstractStreamProtocol, abc.ABC):
    """Stands between the socket and pika's connection; a subclass takes the frames out that it reads itself.

    Args:
        connection: pika's connection.
    """

    def __init__(self, connection: AbstractStreamProtocol) -> None:
        self.connection = connection

    def connection_made(self, transport: AbstractStreamTransport) -> None:
        self.connection.connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self.connection.connection_lost(error)

    def eof_received(self) -> bool | None:
        return self.connection.eof_received()

    @abc.abstractmethod
    def data_received(self, data: bytes) -> None:
        """Read the frames that are complete, and pass the others on."""


class ConfirmWire(Wire):
    """Reads confirms.

    All other frames are passed on to pika, whole and in order, so that a return is processed before the confirm that
    follows it.

    Args:
        connection: pika's connection.
        on_confirm: called for each confirm.
    """

    def __init__(self, connection: AbstractStreamProtocol, on_confirm: ConfirmHandler) -> None:
        super().__init__(connection)
        self._on_confirm = on_confirm
        self._rest = b""
        self._pass_on_at = 0.0

    def data_received(self, data: bytes) -> None:
        if self._rest:
            data, self._rest = self._rest + data, b""
        start, position, end = 0, 0, len(data)
        # pika considers a connection dead if it receives nothing for a while, so a confirm is passed on now and then.
        pass_on = time.monotonic() >= self._pass_on_at
        while end - position >= FRAME_START.size:
            kind, channel, size = FRAME_START.unpack_from(data, position)
            if not 0 < kind <= MAX_FRAME_TYPE:
                # Not AMQP 0-9-1: pika reports the error.
                position = end
                break
            following = position + FRAME_START.size + size + 1
            if following > end:
                break
            if kind == METHOD and size == CONFIRM_SIZE and not pass_on:
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
    """pika's adapter for its event loop, with a `Wire` in each connection that it opens.

    Args:
        loop: the event loop.
        make_wire: makes the wire of one of pika's connections.
    """

    def __init__(self, loop: IOLoop, make_wire: Callable[[AbstractStreamProtocol], Wire]) -> None:
        super().__init__(loop)  # type: ignore[arg-type]
        self._make_wire = make_wire
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
            lambda: self._make_wire(protocol_factory()), sock, done, ssl_context, server_hostname
        )

    def write(self, data: bytes) -> None:
        """Send bytes after everything that pika has sent before."""
        assert self._transport is not None
        self._transport.write(data)
