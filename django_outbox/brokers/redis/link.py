"""One connection to a Redis server, over which a pipeline of encoded commands is sent."""

import math
import socket
import time
from collections.abc import Sequence
from typing import Any

import redis
from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection

from django_outbox.brokers.redis.errors import explain
from django_outbox.brokers.redis.options import Address, ConnectionOptions
from django_outbox.brokers.redis.replies import Replies

READ_SIZE = 65_536

SEND_SIZE = 262_144

CONNECTIONS = {"redis": Connection, "rediss": SSLConnection, "unix": UnixDomainSocketConnection}

NO_LIMIT = 512 * 1024 * 1024
"""Redis's default for `proto-max-bulk-len`, the maximum bytes of an argument."""


class Lost(Exception):
    """The server cannot be reached, or the connection to it has ended; the text is the reason."""


class Link:
    """A connection of redis-py, which connects, logs in, encrypts and selects the database.

    Pipelines are written to its socket as they are, because redis-py would encode each argument and parse each reply
    on its own, which takes longer than everything else that the publisher does.

    Args:
        options: how to connect.
        address: the server.

    Raises:
        Lost: the server cannot be reached, or refuses the login.

    Attributes:
        address: the server.
        max_argument: maximum bytes of an argument that the server accepts.
    """

    def __init__(self, options: ConnectionOptions, address: Address) -> None:
        self.address = address
        self._timeout: float = options.arguments["socket_timeout"]
        place: dict[str, Any] = (
            {"path": address[0]} if options.scheme == "unix" else {"host": address[0], "port": address[1]}
        )
        # Push messages, which only RESP3 has, would come between the replies.
        self._connection = CONNECTIONS[options.scheme](**place, **options.arguments, protocol=2)
        try:
            self._connection.connect()
            self.execute("PING")
            self.max_argument = self._read_max_argument()
        except (redis.RedisError, OSError) as error:
            self.close()
            raise Lost(explain(error)) from error
        self._timeout = options.timeout

    @property
    def is_alive(self) -> bool:
        """Whether the server has not ended the connection. A connection with data that nobody waits for is unusable."""
        try:
            return not self._connection.can_read(timeout=0)
        except (redis.RedisError, OSError):
            return False

    def execute(self, *arguments: str | int | bytes, timeout: float | None = None) -> Any:
        """Send one command, and return the reply as redis-py reads it.

        Args:
            arguments: the command.
            timeout: seconds that the server has to reply; by default, the option `timeout`.

        Raises:
            redis.RedisError, OSError: the reply is an error, or did not come in time.
            Lost: the connection has ended.
        """
        self._socket(time.monotonic() + (self._timeout if timeout is None else timeout))
        self._connection.send_command(*arguments)
        return self._connection.read_response()

    def execute_all(self, commands: Sequence[Sequence[str | int | bytes]]) -> list[Any]:
        """Send commands in one piece, and return the replies as redis-py reads them.

        Raises:
            redis.RedisError, OSError: a reply is an error, or did not come in time.
            Lost: the connection has ended.
        """
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

    def send(self, data: bytes, deadline: float, stall_timeout: float = math.inf) -> None:
        """Send encoded commands.

        Args:
            data: the commands.
            deadline: when to give up, in `time.monotonic()`.
            stall_timeout: seconds without progress after which to give up.

        Raises:
            Lost: the connection has ended, or the time ran out.
        """
        try:
            for start in range(0, len(data), SEND_SIZE):
                piece = data[start : start + SEND_SIZE]
                self._socket(min(deadline, time.monotonic() + stall_timeout)).sendall(piece)
        except OSError as error:
            raise Lost(explain(error)) from error

    def receive(self, replies: Replies, count: int, deadline: float, stall_timeout: float = math.inf) -> None:
        """Read replies until there are that many.

        Args:
            replies: the replies so far.
            count: their number in the end.
            deadline: when to give up, in `time.monotonic()`.
            stall_timeout: seconds without a reply after which to give up.

        Raises:
            Lost: the connection has ended, or the time ran out. `replies` has those that came before.
        """
        try:
            while replies.count < count:
                data = self._socket(min(deadline, time.monotonic() + stall_timeout)).recv(READ_SIZE)
                if not data:
                    raise Lost("Redis has closed the connection")
                replies.feed(data)
        except OSError as error:
            raise Lost(explain(error)) from error

    def close(self) -> None:
        """Close the connection."""
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
