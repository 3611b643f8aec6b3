"""Ways to the brokers of a cluster that can be interrupted while others use the cluster.

A client asks any broker for the addresses of all, and then connects to these. So proxies alone are not enough: the
addresses in the brokers' responses are replaced with those of the proxies. The messages are described in
https://kafka.apache.org/protocol.html.
"""

import struct
from collections.abc import Mapping

from confluent_kafka.admin import AdminClient

from tests.support.proxies import Filter, Proxies, Proxy

PATIENCE = 20.0

METADATA, FIND_COORDINATOR = 3, 10

VERSIONS = {METADATA: range(9, 14), FIND_COORDINATOR: range(1, 3)}
"""The versions that librdkafka uses, and that are read here."""

HEADER = struct.Struct(">ihhi")
"""Of a request: its length, what is asked for, the version of that, and a number that the response repeats."""


class Gateway:
    """A proxy to each broker; `servers` are their addresses, and `port` is one of them.

    Args:
        thread: serves the proxies; by default a thread of its own, which `close` ends.
    """

    def __init__(self, servers: str, thread: Proxies | None = None) -> None:
        self._thread = thread or Proxies().__enter__()
        brokers = AdminClient({"bootstrap.servers": servers}).list_topics(timeout=PATIENCE).brokers
        self.proxies: dict[int, Proxy] = {}
        for id, broker in brokers.items():
            self.proxies[id] = self._thread.open(broker.port, host=str(broker.host), make_filters=self._make_filters)
        self.servers = ",".join(f"127.0.0.1:{proxy.port}" for proxy in self.proxies.values())
        self.port = next(iter(self.proxies.values())).port

    def go_down(self, *brokers: int) -> None:
        """End all connections of these brokers, by default of all, and accept no new ones."""
        for id in brokers or self.proxies:
            self.proxies[id].go_down()

    def come_back(self, *brokers: int) -> None:
        for id in brokers or self.proxies:
            self.proxies[id].come_back()

    def cut(self, *, after: int | None = None) -> None:
        """End all connections: at once, or those to a broker once that many more bytes have gone to it."""
        for proxy in self.proxies.values():
            proxy.cut(after=after)

    def go_silent(self) -> None:
        """Swallow all that comes, and keep the connections open."""
        for proxy in self.proxies.values():
            proxy.go_silent()

    def speak(self) -> None:
        """End the silence, and with it the connections that lost data."""
        for proxy in self.proxies.values():
            proxy.speak()

    def close(self) -> None:
        self._thread.__exit__()

    def _make_filters(self) -> tuple[Filter, Filter]:
        connection = _Connection({id: proxy.port for id, proxy in self.proxies.items()})
        return connection.read_requests, connection.change_responses


class _Connection:
    """What must be known of a connection to change the responses on it."""

    def __init__(self, ports: Mapping[int, int]) -> None:
        self._ports = ports
        self._requests = b""
        self._responses = b""
        self._asked: dict[int, int] = {}

    def read_requests(self, data: bytes) -> bytes:
        self._requests += data
        while len(self._requests) >= HEADER.size:
            length, kind, version, number = HEADER.unpack_from(self._requests)
            if len(self._requests) < 4 + length:
                break
            if kind in VERSIONS:
                assert version in VERSIONS[kind], f"version {version} of request {kind}"
                self._asked[number] = kind
            self._requests = self._requests[4 + length :]
        return data

    def change_responses(self, data: bytes) -> bytes:
        self._responses += data
        changed = b""
        while len(self._responses) >= 8:
            length, number = struct.unpack_from(">ii", self._responses)
            if len(self._responses) < 4 + length:
                break
            response, self._responses = self._responses[4 : 4 + length], self._responses[4 + length :]
            if number in self._asked:
                response = _Response(response, self._asked.pop(number), self._ports).changed()
            changed += struct.pack(">i", len(response)) + response
        return changed


class _Response:
    """A response, which is copied up to the last address in it, and the rest as it is."""

    def __init__(self, data: bytes, kind: int, ports: Mapping[int, int]) -> None:
        self._data = data
        # Strings and arrays are compact, and structures have tagged fields.
        self._is_flexible = kind == METADATA
        self._ports = ports
        self._at = 0
        self._copy = b""

    def changed(self) -> bytes:
        self._take(4)
        self._tags()
        self._take(4)
        if self._is_flexible:
            for _ in range(self._varint() - 1):
                self._address()
                self._string()
                self._tags()
        else:
            self._take(2)
            self._string()
            self._address()
        return self._copy + self._data[self._at :]

    def _address(self) -> None:
        (id,) = struct.unpack(">i", self._take(4))
        if id not in self._ports:
            self._string()
            self._take(4)
            return
        before = self._copy
        self._string()
        self._take(4)
        host = b"127.0.0.1"
        length = bytes([len(host) + 1]) if self._is_flexible else struct.pack(">h", len(host))
        self._copy = before + length + host + struct.pack(">i", self._ports[id])

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        self._copy += taken
        return taken

    def _varint(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self._take(1)
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    def _string(self) -> None:
        length = self._varint() - 1 if self._is_flexible else struct.unpack(">h", self._take(2))[0]
        self._take(max(length, 0))

    def _tags(self) -> None:
        if self._is_flexible:
            for _ in range(self._varint()):
                self._varint()
                self._take(self._varint())
