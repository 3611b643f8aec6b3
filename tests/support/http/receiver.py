"""A receiver of webhooks: a real HTTP/1.1 server in threads."""

import pickle
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

from django_outbox.brokers.http import HTTPPublisher

MakePublisher: TypeAlias = Callable[..., HTTPPublisher]


@dataclass(frozen=True)
class Call:
    """A request as the receiver got it; names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int


@dataclass(frozen=True)
class Reply:
    """What the receiver responds: `raw` piece by piece if it is given."""

    status: int = 204
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    raw: Iterable[bytes] = ()


class Receiver:
    """Serves on a port of this machine until the context is left; `reply` returns the response to each POST."""

    def __init__(
        self,
        reply: Callable[[Call], Reply] = lambda _call: Reply(),
        *,
        context: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        # Not in memory, which tests of publishers measure.
        self._calls = tempfile.TemporaryFile()  # noqa: SIM115
        self._lock = threading.Lock()
        self.reply = reply
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # A response to a request whose body comes in a second packet must not wait for an acknowledgement.
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                receiver._respond(self)

            def do_OPTIONS(self) -> None:
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_args: Any) -> None:
                """Print nothing."""

        self._server = _Server(("127.0.0.1", port), Handler)
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_port
        # Without a short interval, the end takes half a second.
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._calls.close()

    @property
    def calls(self) -> list[Call]:
        """The POST requests since the last `clear`, in the order of their arrival."""
        found = []
        with self._lock:
            self._calls.seek(0)
            while True:
                try:
                    found.append(pickle.load(self._calls))
                except EOFError:
                    return found

    def clear(self) -> None:
        with self._lock:
            self._calls.seek(0)
            self._calls.truncate()

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def _respond(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"]))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        call = Call(handler.command, handler.path, headers, body, handler.client_address[1])
        with self._lock:
            pickle.dump(call, self._calls)
        reply = self.reply(call)
        if reply.raw:
            for piece in reply.raw:
                handler.wfile.write(piece)
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if "content-length" not in reply.headers and reply.status != 204:
            handler.send_header("content-length", str(len(reply.body)))
        handler.end_headers()
        handler.wfile.write(reply.body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_args: Any) -> None:
        """Print nothing when a client has gone."""
