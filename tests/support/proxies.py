"""TCP proxies to servers of this machine, which make trouble on demand."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

CHUNK = 65_536

Filter = Callable[[bytes], bytes]
"""Takes each piece of data that comes, and returns what is sent instead."""


class Proxies:
    """A thread that serves any number of proxies."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._open: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="faults-proxies", daemon=True)

    def open(
        self,
        port: int,
        tls: ssl.SSLContext | None = None,
        *,
        host: str = "127.0.0.1",
        make_filters: Callable[[], tuple[Filter, Filter]] | None = None,
    ) -> "Proxy":
        """Open a proxy to a port, by default of this machine. With `tls`, its clients have to speak TLS.

        `make_filters` returns the filters of a new connection: of what goes to the server, and of what it sends.
        """
        proxy = Proxy(port, self, tls, host, make_filters)
        self._open.append(proxy)
        self.run(proxy.listen())
        return proxy

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the thread, and wait until it is done."""
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def call(self, work: Callable[[], None]) -> None:
        """Have something done in the thread soon."""
        self._loop.call_soon_threadsafe(work)

    def __enter__(self) -> "Proxies":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        for proxy in self._open:
            proxy.stop_accepting()
        # A connection that was just accepted is closed only if its task has begun before its server is closed.
        await asyncio.sleep(0.05)
        for proxy in self._open:
            proxy.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Aborted transports close their sockets in the next round.
        await asyncio.sleep(0.05)


class Proxy:
    """One way to one server.

    Attributes:
        port: where it listens.
        connections: how many there have been.
        beginning: the first bytes that went to the server.
        bytes_from_server: how many the clients were sent.
    """

    def __init__(
        self,
        target: int,
        proxies: Proxies,
        tls: ssl.SSLContext | None,
        host: str,
        make_filters: Callable[[], tuple[Filter, Filter]] | None,
    ) -> None:
        self._tls = tls
        self.port = 0
        self.connections = 0
        self.beginning = b""
        self.bytes_from_server = 0
        self._target = (host, target)
        self._make_filters = make_filters
        self._proxies = proxies
        self._silent = False
        self._refusing = False
        self._allowance: int | None = None
        self._held_after: int | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._clients: list[asyncio.StreamWriter] = []

    @property
    def open(self) -> int:
        return len(self._writers) // 2

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=CHUNK, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        """Leave new connections in the queue of the socket; called in the thread."""
        for listening in self._server.sockets:
            self._server.get_loop().remove_reader(listening)

    def close(self) -> None:
        """Reset the connections that were not accepted; called in the thread."""
        self._server.close()

    def go_silent(self) -> None:
        """Swallow all that comes, in both directions, and keep the connections open: both ends think all is well."""
        self._silent = True

    def speak(self) -> None:
        """End the silence, and with it the connections that lost data."""
        self._silent = False
        self.cut()

    def go_down(self) -> None:
        """End all connections, and each new one, until `come_back`."""
        self._refusing = True
        self.cut()

    def come_back(self) -> None:
        self._refusing = False

    def cut(self, *, after: int | None = None) -> None:
        """End all connections with a reset: at once, or once that many more bytes have gone to the server."""
        if after is None:
            self._proxies.run(self._end_all())
        else:
            self._allowance = after

    def hold_back(self, *, after: int = 0) -> None:
        """Let that many more bytes through to the server, and then read nothing more from the clients."""
        self._held_after = after

    def resume(self) -> None:
        self._held_after = None

    def end_connections(self) -> None:
        """End each connection as a server that goes away does; what was sent before still arrives."""
        for client in self._clients:
            with suppress(OSError):
                client.get_extra_info("socket").shutdown(socket.SHUT_WR)

    def say(self, data: bytes) -> None:
        """Send something to the last client, as if the server had; only while the server is silent itself."""
        self._proxies.call(lambda: self._clients[-1].write(data))

    async def _end_all(self) -> None:
        self._abort()
        # The loop closes the sockets in its next round.
        await asyncio.sleep(0)

    def _abort(self) -> None:
        self._allowance = None
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refusing:
            writer.transport.abort()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        if self._refusing:
            # It went down in the meantime.
            writer.transport.abort()
            server_writer.transport.abort()
            return
        self._clients.append(writer)
        both = {writer, server_writer}
        self._writers |= both
        there, back = self._make_filters() if self._make_filters else (_unchanged, _unchanged)
        try:
            with suppress(OSError, asyncio.CancelledError):
                await asyncio.gather(
                    self._carry(reader, server_writer, there, to_server=True),
                    self._carry(server_reader, writer, back, to_server=False),
                )
        finally:
            self._writers -= both
            self._clients.remove(writer)
            for each in both:
                each.transport.abort()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Filter, *, to_server: bool
    ) -> None:
        while data := await reader.read(CHUNK):
            data = change(data)
            if self._silent:
                continue
            if to_server and self._allowance is not None:
                self._allowance -= len(data)
                if self._allowance <= 0:
                    writer.write(data[: self._allowance or None])
                    self._abort()
                    return
            if to_server:
                self.beginning = (self.beginning + data)[:4096]
                data = await self._hold(data, reader, writer)
            else:
                self.bytes_from_server += len(data)
            writer.write(data)
            await writer.drain()
        # One end is gone: end the connection to the other one, after everything that was sent to it.
        if self._silent:
            await asyncio.Event().wait()
        raise ConnectionResetError

    async def _hold(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Send what may go through now, and return the rest when all may."""
        while self._held_after is not None:
            writer.write(data[: self._held_after])
            data, self._held_after = data[self._held_after :], max(self._held_after - len(data), 0)
            if not data:
                break
            if error := reader.exception():
                # The client has hung up, and takes back what it has sent.
                raise error
            await asyncio.sleep(0.02)
        return data


def _unchanged(data: bytes) -> bytes:
    return data
