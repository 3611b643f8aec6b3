"""The network beneath httpcore: addresses are checked, and a request has one time limit."""

import ssl
import threading
import time
from collections.abc import Iterable
from typing import Any

import httpcore

from django_outbox.brokers.http.addresses import resolve

PIECE = 65_536
"""Maximum number of bytes that are written at once."""


class Deadline(threading.local):
    """The end of the request that the current thread sends.

    httpcore's timeouts apply to each read, so that a server that sends a byte now and then would never time out.

    Attributes:
        at: when the request must be over, by `time.monotonic()`.
        connected: whether the thread has opened a connection for it.
    """

    at = 0.0
    connected = False

    def start(self, seconds: float) -> None:
        """Begin a request that may take that many seconds."""
        self.at = time.monotonic() + seconds
        self.connected = False

    def left(self, error: type[Exception]) -> float:
        """Return the seconds that are left.

        Args:
            error: the exception to raise if there are none.
        """
        seconds = self.at - time.monotonic()
        if seconds <= 0:
            raise error("the request took too long")
        return seconds


class Network(httpcore.NetworkBackend):
    """Opens connections for httpcore.

    Args:
        deadline: the end of each thread's request.
        connect_timeout: seconds for connecting to one address.
        allow_private: whether addresses that are not public may be connected to.
    """

    def __init__(self, deadline: Deadline, *, connect_timeout: float, allow_private: bool) -> None:
        self._deadline = deadline
        self._connect_timeout = connect_timeout
        self._allow_private = allow_private
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        self._deadline.connected = True
        addresses = resolve(host, port, allow_private=self._allow_private)
        for number, address in enumerate(addresses, 1):
            seconds = min(self._connect_timeout, self._deadline.left(httpcore.ConnectTimeout))
            try:
                stream = self._backend.connect_tcp(address, port, seconds, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if number == len(addresses):
                    raise
            else:
                return Stream(stream, self._deadline)
        raise AssertionError("a host has at least one address")


class Stream(httpcore.NetworkStream):
    """A connection on which each operation ends with the request.

    Args:
        stream: the connection.
        deadline: the end of each thread's request.
    """

    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # Piece by piece: its time limit begins again whenever the server has taken some bytes.
        for start in range(0, len(buffer), PIECE):
            piece = buffer[start : start + PIECE] if len(buffer) > PIECE else buffer
            self._stream.write(piece, self._deadline.left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        seconds = self._deadline.left(httpcore.ConnectTimeout)
        return Stream(self._stream.start_tls(ssl_context, server_hostname, seconds), self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
