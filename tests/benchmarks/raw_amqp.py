"""A connection to RabbitMQ that is a bare socket once it is open: no client library can cost less."""

import socket
from contextlib import suppress
from typing import Any

import pika
from pika.frame import Method, ProtocolHeader, decode_frame
from pika.spec import Channel, Confirm, Connection

from tests.benchmarks.measuring import BenchmarkError

PATIENCE = 60.0
"""Seconds within which the broker must send something."""

CHANNEL = 1


class RawConnection:
    """A connection with one channel, with publisher confirms and without heartbeats."""

    def __init__(self, url: str) -> None:
        self._buffer = b""
        parameters = pika.URLParameters(url)
        try:
            self.socket = socket.create_connection((parameters.host, parameters.port), PATIENCE)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls := parameters.ssl_options:
                name = tls.server_hostname or parameters.host
                self.socket = tls.context.wrap_socket(self.socket, server_hostname=name)
            self.socket.sendall(ProtocolHeader().marshal())
            start = self._expect(Connection.Start)
            self.server_version = str(start.server_properties["version"])
            mechanism, response = parameters.credentials.response_for(start)
            if mechanism is None or response is None:
                raise BenchmarkError("The broker of AMQP_URL does not accept a user and a password.")
            login = Connection.StartOk({"product": "benchmark"}, mechanism, response.decode())
            tune = self._ask(0, login, Connection.Tune)
            self._send(0, Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
            self._ask(0, Connection.Open(parameters.virtual_host), Connection.OpenOk)
            self._ask(CHANNEL, Channel.Open(), Channel.OpenOk)
            self._ask(CHANNEL, Confirm.Select(), Confirm.SelectOk)
        except OSError as error:
            raise BenchmarkError(f"The broker of AMQP_URL does not answer: {error}") from error

    def close(self) -> None:
        """Close the connection in order, so that the broker logs no warning; discard what it sends until then."""
        answer = Method(0, Connection.CloseOk()).marshal()
        with self.socket, suppress(ConnectionResetError):
            self._send(0, Connection.Close(200, "done", 0, 0))
            # Not frame by frame: a sender may have read a part of one.
            end = b""
            while end != answer and (data := self.socket.recv(65_536)):
                end = (end + data)[-len(answer) :]

    def _ask(self, channel: int, method: Any, answer: type) -> Any:
        self._send(channel, method)
        return self._expect(answer)

    def _send(self, channel: int, method: Any) -> None:
        self.socket.sendall(Method(channel, method).marshal())

    def _expect(self, answer: type) -> Any:
        frame: Any = None
        while frame is None:
            if not (data := self.socket.recv(65_536)):
                raise BenchmarkError("The broker of AMQP_URL closed the connection; check user, password and vhost.")
            self._buffer += data
            consumed, frame = decode_frame(self._buffer)
            self._buffer = self._buffer[consumed:]
        method = getattr(frame, "method", None)
        if not isinstance(method, answer):
            raise BenchmarkError(f"The broker sent {method or frame} instead of {answer.__name__}.")
        return method
