"""Report database calls that hang, and end the connections of calls that hang too long.

A server that stands still while its kernel goes on, as with a stalled disk, acknowledges every packet, so no timeout of
the driver or of TCP ends the wait.
"""

import math
import os
import socket
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.stores.clock import boot_time
from django_outbox.utils.logs import logger
from django_outbox.utils.text import duration
from django_outbox.utils.threads import in_background


class _Call:
    """A call in progress, and the block in which it is watched.

    Its `link` is the descriptor of the connection's socket with the inode, because only the thread that uses a
    connection may ask it for anything, and another connection may have the descriptor later. It is None until it is
    connected, and for a database without a network connection.
    """

    __slots__ = ("_calls", "_connection", "began", "link", "max_seconds")

    def __init__(self, calls: "DatabaseCalls", connection: BaseDatabaseWrapper, max_seconds: float) -> None:
        self._calls, self._connection, self.max_seconds = calls, connection, max_seconds
        self.began = calls.clock()
        self.link: tuple[int, int] | None = None

    @property
    def using(self) -> str:
        return self._connection.alias

    def __enter__(self) -> None:
        self._calls.begin(self)
        try:
            if not self._connection.in_atomic_block:
                self._connection.ensure_connection()
            self.link = _find_socket(self._connection)
        except BaseException:
            self._calls.end(self)
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._calls.end(self, responded=kind is None)


class DatabaseCalls:
    """The claims and settlements in progress of a relay's workers. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self.clock = clock
        self._responded_at = -math.inf
        self._open: set[_Call] = set()
        self._lock = threading.Lock()

    def watch(self, connection: BaseDatabaseWrapper, max_seconds: float) -> AbstractContextManager[None]:
        """Watch the database calls of a block.

        Args:
            max_seconds: time after which `end_overdue` ends the connection.
        """
        return _Call(self, connection, max_seconds)

    def begin(self, call: _Call) -> None:
        with self._lock:
            self._open.add(call)

    def end(self, call: _Call, *, responded: bool = False) -> None:
        if responded:
            self._responded_at = self.clock()
        with self._lock:
            self._open.discard(call)

    @property
    def seconds_without_answer(self) -> float:
        """The age of the oldest call since the database has answered another one; 0 if there is none."""
        with self._lock:
            began = min((call.began for call in self._open), default=math.inf)
            return max(self.clock() - max(began, self._responded_at), 0.0)

    def end_overdue(self) -> None:
        """End the connection of each call that takes longer than its limit; the waiting thread gets a DatabaseError."""
        with self._lock:
            for call in self._open:
                if call.link is not None and self.clock() - call.began > call.max_seconds:
                    _shut_down(*call.link)
                    call.link = None
                    logger.warning(
                        "A call to the database %(database)r has taken longer than CLAIM_TIMEOUT = "
                        f"{duration(call.max_seconds)}: this process was stopped, or the database does not respond. "
                        "The connection is closed.",
                        event="relay.database_hangs",
                        database=call.using,
                        seconds=call.max_seconds,
                    )


def _find_socket(connection: Any) -> tuple[int, int] | None:
    """Return the descriptor and the inode of a connection of this thread; None if it was lost, or uses no network."""
    # A lost connection has no descriptor, and SQLite's has no such method.
    with suppress(Exception):
        descriptor: int = connection.connection.fileno()
        return descriptor, os.fstat(descriptor).st_ino
    return None


def _shut_down(descriptor: int, inode: int) -> None:
    """Shut the socket of a connection down, unless the connection has ended in the meantime."""
    with suppress(OSError):
        # The duplicate stays what it is, even if the descriptor becomes another one's now.
        copy = os.dup(descriptor)
        if os.fstat(copy).st_ino != inode:
            os.close(copy)
            return
        with socket.socket(fileno=copy) as link:
            link.shutdown(socket.SHUT_RDWR)


def watching(
    calls: DatabaseCalls, note: Callable[[str], None], *, interval: float, patience: float
) -> AbstractContextManager[None]:
    """Watch database calls in a thread until the end of the block.

    Args:
        note: called with a reason at each interval while the database answers nothing for longer than `patience`.
    """

    def work(left: threading.Event) -> None:
        while not left.wait(interval):
            seconds = calls.seconds_without_answer
            if seconds > patience:
                note(f"it has not responded for {duration(seconds)}")
            calls.end_overdue()

    return in_background(work, name="outbox-watchdog", patience=0)
