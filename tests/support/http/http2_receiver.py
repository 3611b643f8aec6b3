"""A receiver of webhooks that speaks HTTP/2 over TLS only."""

import socket
import ssl
import threading
from contextlib import suppress

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, RequestReceived, StreamEnded


class Http2Receiver:
    """Serves on a port of this machine until the context is left, and responds 204 to every request.

    Args:
        context: the server's certificate.

    Attributes:
        port: where it listens.
        bodies: the bodies of the POST requests.
        connections: how many there have been.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        context.set_alpn_protocols(["h2"])
        self.bodies: list[bytes] = []
        self.connections = 0
        self._context = context
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    def __enter__(self) -> "Http2Receiver":
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in (self._listener, *self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
                stream = self._context.wrap_socket(plain, server_side=True)
            except OSError:
                return
            self.connections += 1
            self._open.append(stream)
            self._threads.append(threading.Thread(target=self._serve, args=[stream], daemon=True))
            self._threads[-1].start()

    def _serve(self, stream: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        posts: dict[int, bytes] = {}
        with suppress(OSError):
            stream.sendall(connection.data_to_send())
            while data := stream.recv(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, RequestReceived) and (b":method", b"POST") in event.headers:
                        posts[event.stream_id] = b""
                    elif isinstance(event, DataReceived):
                        posts[event.stream_id] += event.data
                        connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                    elif isinstance(event, StreamEnded):
                        connection.send_headers(event.stream_id, [(":status", "204")], end_stream=True)
                        if event.stream_id in posts:
                            self.bodies.append(posts.pop(event.stream_id))
                stream.sendall(connection.data_to_send())
