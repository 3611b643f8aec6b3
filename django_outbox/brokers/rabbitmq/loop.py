"""pika's event loop, extended by a way to cut the connection."""

import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

from pika.adapters.select_connection import IOLoop


class Loop(IOLoop):
    """Knows the connection's socket. pika itself can only close a connection with the broker's cooperation."""

    _fd: int | None = None

    def add_handler(self, fd: int, handler: Callable[[int, int], None], events: int) -> None:
        self._fd = fd
        super().add_handler(fd, handler, events)

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
