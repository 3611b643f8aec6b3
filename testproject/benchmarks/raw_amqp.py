"""A connection to RabbitMQ that is a bare socket once it is open: no client library can cost less."""

import socket
from typing import Any

import pika
from django.core.management.base import CommandError
from pika.frame import Frame, Method, ProtocolHeader, decode_frame
from pika.spec import Channel, Confirm, Connection

PATIENCE = 60.0
"""Seconds that the broker may be silent."""

CHANNEL = 1


class RawConnection:
    """A connection with one channel that has publisher confirms on. It sends no heartbeats.

    Args:
        url: the broker's.

    Attributes:
        socket: what frames are written to and read from.
        server_properties: what the broker says of itself.

    Raises:
        CommandError: the broker does not answer, or refuses.
    """

    def __init__(self, url: str) -> None:
        self._parameters = pika.URLParameters(url)
        self._buffer = b""
        address = (self._parameters.host, self._parameters.port)
        try:
            self.socket = socket.create_connection(address, PATIENCE)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls := self._parameters.ssl_options:
                name = tls.server_hostname or self._parameters.host
                self.socket = tls.context.wrap_socket(self.socket, server_hostname=name)
            self._open()
        except OSError as error:
            raise CommandError(f"The broker of AMQP_URL does not answer: {error}") from error

    def close(self) -> None:
        """Close it in order, so that the broker logs no warning."""
        self._ask(0, Connection.Close(200, "done", 0, 0), Connection.CloseOk)
        self.socket.close()

    def _open(self) -> None:
        self.socket.sendall(ProtocolHeader().marshal())
        start = self._expect(Connection.Start)
        self.server_properties: dict[str, Any] = start.server_properties
        mechanism, response = self._parameters.credentials.response_for(start)
        if mechanism is None or response is None:
            raise CommandError("The broker of AMQP_URL does not take a user and a password.")
        tune = self._ask(0, Connection.StartOk({"product": "benchmark"}, mechanism, response.decode()), Connection.Tune)
        self._send(0, Connection.TuneOk(tune.channel_max, tune.frame_max, 0))
        self._ask(0, Connection.Open(self._parameters.virtual_host), Connection.OpenOk)
        self._ask(CHANNEL, Channel.Open(), Channel.OpenOk)
        self._ask(CHANNEL, Confirm.Select(), Confirm.SelectOk)

    def _ask(self, channel: int, method: Any, answer: type) -> Any:
        self._send(channel, method)
        return self._expect(answer)

    def _send(self, channel: int, method: Any) -> None:
        self.socket.sendall(Method(channel, method).marshal())

    def _expect(self, answer: type) -> Any:
        frame: Frame | ProtocolHeader | None = None
        while frame is None:
            if not (data := self.socket.recv(65_536)):
                raise CommandError("The broker of AMQP_URL ends the connection; are user, password and vhost right?")
            self._buffer += data
            consumed, frame = decode_frame(self._buffer)
            self._buffer = self._buffer[consumed:]
        method = getattr(frame, "method", None)
        if not isinstance(method, answer):
            raise CommandError(f"The broker says {method or frame}, where {answer.__name__} was expected.")
        return method
