"""Report database calls that hang, and end the connections of calls that hang too long.

A server that stands still while its kernel goes on, as with a stalled disk, acknowledges every packet, so no timeout of
the driver or of TCP ends the wait.
"""

import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.stores.clock import boot_time
from django_outbox.utils.logs import logger
from django_outbox.utils.text import duration
from django_outbox.utils.threads import in_background


@dataclass(slots=True, eq=False)
class _Call:
    """A call in progress.

    Args:
        link: a duplicate of the connection's socket, because only the thread that uses a connection may ask it for
            anything; None until it is connected, and for a database without a network connection.
    """

    using: str
    began: float
    max_seconds: float
    link: socket.socket | None = None


class DatabaseCalls:
    """The claims and settlements in progress of a relay's workers. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._responded_at = -math.inf
        self._open: set[_Call] = set()
        self._lock = threading.Lock()

    @contextmanager
    def watch(self, connection: BaseDatabaseWrapper, max_seconds: float) -> Iterator[None]:
        """Watch the database calls of a block.

        Args:
            max_seconds: time after which `end_overdue` ends the connection.
        """
        call = _Call(connection.alias, self._clock(), max_seconds)
        with self._lock:
            self._open.add(call)
        try:
            if not connection.in_atomic_block:
                connection.ensure_connection()
            call.link = _duplicate_socket(connection)
            yield
            self._responded_at = self._clock()
        finally:
            with self._lock:
                self._open.discard(call)
                if call.link is not None:
                    call.link.close()

    @property
    def seconds_without_answer(self) -> float:
        """The age of the oldest call since the database has answered another one; 0 if there is none."""
        with self._lock:
            began = min((call.began for call in self._open), default=math.inf)
            return max(self._clock() - max(began, self._responded_at), 0.0)

    def end_overdue(self) -> None:
        """End the connection of each call that takes longer than its limit; the waiting thread gets a DatabaseError."""
        with self._lock:
            for call in self._open:
                if call.link is not None and self._clock() - call.began > call.max_seconds:
                    with suppress(OSError):
                        call.link.shutdown(socket.SHUT_RDWR)
                    call.link.close()
                    call.link = None
                    logger.warning(
                        "A call to the database %(database)r has taken longer than CLAIM_TIMEOUT = "
                        f"{duration(call.max_seconds)}: this process was stopped, or the database does not respond. "
                        "The connection is closed.",
                        event="relay.database_hangs",
                        database=call.using,
                        seconds=call.max_seconds,
                    )


def _duplicate_socket(connection: BaseDatabaseWrapper) -> socket.socket | None:
    """Return a separate socket for the network connection of this thread; None if there is none, or it was lost."""
    # A lost connection has no descriptor, and SQLite's has no such method.
    with suppress(Exception):
        return socket.socket(fileno=os.dup(connection.connection.fileno()))
    return None


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
