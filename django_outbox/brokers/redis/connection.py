"""Connections to a Redis server, over which pipelines of encoded commands are sent.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

import re
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import filterfalse
from operator import methodcaller
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from django_outbox.brokers.redis.errors import Lost, explain
from django_outbox.brokers.redis.options import Address, RedisOptions, name_addresses

READ_SIZE = 65_536

SEND_SIZE = 262_144

IS_LENGTH, IS_ERROR = methodcaller("startswith", b"$"), methodcaller("startswith", b"-")

CONNECTIONS = {"redis": Connection, "rediss": SSLConnection}

NO_LIMIT = 512 * 1024 * 1024
"""Redis's default for `proto-max-bulk-len`, the maximum bytes of an argument."""

DEDUPLICATES = (8, 6, 2)
"""The first version of Redis that keeps the IDs of XADD's option IDMP when it rewrites its file; 8.6.0 introduced it:
https://github.com/redis/redis/blob/8.6.3/00-RELEASENOTES."""


@dataclass(slots=True)
class Replies:
    """Replies that are received in pieces. Each is a line, or the ID of an entry: a line behind one with its length.

    An ID begins with a digit, so a line that begins with `$` is a length. Errors have positions among the replies.
    """

    count: int = 0
    errors: dict[int, str] = field(default_factory=dict)
    _rest: bytes = b""

    def feed(self, data: bytes) -> None:
        lines = (self._rest + data).split(b"\r\n")
        self._rest = lines.pop()
        replies = [*filterfalse(IS_LENGTH, lines)]
        if any(map(IS_ERROR, replies)):
            for position, reply in enumerate(replies, self.count):
                if IS_ERROR(reply):
                    self.errors[position] = reply[1:].decode("utf-8", "replace")
        self.count += len(replies)


class RedisConnection:
    """A connection of redis-py, which connects, logs in, encrypts and selects the database.

    Pipelines are written to its socket as they are, because redis-py would encode each argument and parse each reply
    on its own, which takes longer than everything else that the publisher does.
    """

    def __init__(self, options: RedisOptions, *, deduplicate: bool = False) -> None:
        self._timeout: float = options.arguments["socket_timeout"]
        host, port = _find_master(options) if options.master else options.address
        # Push messages, which only RESP3 has, would come between the replies.
        self._connection = CONNECTIONS[options.scheme](host=host, port=port, **options.arguments, protocol=2)
        try:
            self._connection.connect()
            self.execute("PING")
            self.max_argument = self._read_max_argument()
            if deduplicate:
                self._require_deduplication()
        except (redis.RedisError, OSError, Lost) as error:
            self.close()
            raise Lost(explain(error)) from error
        self._timeout = options.timeout

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended the connection. A connection with unexpected data is unusable."""
        try:
            return not self._connection.can_read(timeout=0)
        except (redis.RedisError, OSError):
            return False

    def execute(self, *arguments: str | int | bytes) -> Any:
        (reply,) = self.execute_all([arguments])
        return reply

    def execute_all(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[Any]:
        """Send commands in one piece, and return the replies as redis-py reads them."""
        self._socket(time.monotonic() + self._timeout)
        self._connection.send_packed_command(self._connection.pack_commands(commands))
        replies: list[Any] = []
        for _ in commands:
            try:
                replies.append(self._connection.read_response())
            except redis.ResponseError as error:
                replies.append(error)
        for reply in replies:
            if isinstance(reply, redis.ResponseError):
                raise reply
        return replies

    def send(self, data: bytes, deadline: float) -> None:
        """Send encoded commands; give up at the deadline, by `time.monotonic()`."""
        try:
            for start in range(0, len(data), SEND_SIZE):
                piece = data[start : start + SEND_SIZE]
                self._socket(deadline).sendall(piece)
        except OSError as error:
            raise Lost(explain(error)) from error

    def receive(self, replies: Replies, count: int, deadline: float) -> None:
        """Read replies until there are `count`; give up at the deadline.

        Raises:
            Lost: the connection has ended, or the time ran out. `replies` has the replies that came before.
        """
        try:
            while replies.count < count:
                data = self._socket(deadline).recv(READ_SIZE)
                if not data:
                    raise Lost("Redis has closed the connection")
                replies.feed(data)
        except OSError as error:
            raise Lost(explain(error)) from error

    def close(self) -> None:
        self._connection.disconnect()

    def _socket(self, deadline: float) -> socket.socket:
        found: socket.socket | None = self._connection._sock
        if found is None:
            raise Lost("the connection is closed")
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        found.settimeout(seconds)
        return found

    def _read_max_argument(self) -> int:
        try:
            _, value = self.execute("CONFIG", "GET", "proto-max-bulk-len")
            return int(value)
        except (redis.ResponseError, ValueError):
            # The user may not read the configuration, or the service has no such command.
            return NO_LIMIT

    def _require_deduplication(self) -> None:
        # No permission is needed for HELLO.
        _, server, _, version, *_ = self.execute("HELLO")
        if server != b"redis" or tuple(map(int, re.findall(rb"\d+", version))) < DEDUPLICATES:
            found = f"{server.decode()} {version.decode()}"
            raise Lost(f"deduplicate needs Redis 8.6.2 or newer, and this is {found}; upgrade it or remove the option")


def _find_master(options: RedisOptions) -> Address:
    """Ask the Sentinels for the master, which may be another one for each connection."""
    where = f"the Sentinels at {name_addresses(options.sentinel_addresses)}"
    arguments: dict[str, Any] = {**options.sentinel_arguments, "retry": Retry(NoBackoff(), 0)}
    sentinel = Sentinel(options.sentinel_addresses, sentinel_kwargs=arguments)  # type: ignore[no-untyped-call]
    try:
        host, port = sentinel.discover_master(options.master)  # type: ignore[no-untyped-call]
    except MasterNotFoundError:
        reason = f"know no master {options.master!r} that is up, or cannot be reached; check url and sentinels"
        raise Lost(f"{where} {reason}") from None
    except redis.RedisError as error:
        raise Lost(f"{where}: {explain(error)}") from error
    finally:
        for client in sentinel.sentinels:
            client.close()
    return str(host), int(port)


class RedisPool:
    """The idle connections, which any thread may use again. Each carries one batch at a time."""

    def __init__(self, options: RedisOptions, *, deduplicate: bool = False) -> None:
        self._options = options
        self._deduplicate = deduplicate
        self._lock = threading.Lock()
        self._idle: list[RedisConnection] = []

    def take(self) -> RedisConnection:
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return RedisConnection(self._options, deduplicate=self._deduplicate)
            if connection.is_alive:
                return connection
            connection.close()

    def put(self, connection: RedisConnection) -> None:
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def encode_command(*arguments: str | bytes) -> bytes:
    return b"*%d\r\n" % len(arguments) + b"".join(map(encode_argument, arguments))


def encode_argument(argument: str | bytes) -> bytes:
    encoded = argument.encode() if isinstance(argument, str) else argument
    return b"$%d\r\n%b\r\n" % (len(encoded), encoded)
