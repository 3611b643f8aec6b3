"""A connection with its own thread, for brokers that must be read regardless of what the callers do.

`PendingCall` has the messages that another thread sends, and `Intake` the messages that it reads.
"""

import abc
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from django_outbox.brokers.consumer import Incoming, Unavailable, take_batch


class ConnectionThread(abc.ABC):
    """A connection that is not opened again after its end; construct another one.

    Underscore methods run on its thread; public methods are thread-safe. A subclass starts `_thread` at the end of its
    constructor.
    """

    kind: ClassVar[str]
    """`publisher` or `consumer`, for the log and for errors."""

    def __init__(self, alias: str, broker: str) -> None:
        self.error = ""
        self._owner = f"{self.kind.capitalize()} {alias!r}"
        # Set when the connection can be used, or has ended.
        self._is_settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{broker}-{alias}", daemon=True)

    def wait_until_ready(self) -> str:
        """Wait until it can be used or has failed. Return the reason if it failed, and otherwise an empty string."""
        self._is_settled.wait()
        return self.error

    def open(self) -> None:
        if reason := self.wait_until_ready():
            raise Unavailable(reason)

    @abc.abstractmethod
    def _run(self) -> None:
        """Open the connection, and read from it until its end."""

    def _end(self, error: str) -> None:
        """Note why the connection has ended, or is being closed. Only the first call counts."""
        if not self.error:
            self.error = error
            self._release(error)
            self._is_settled.set()

    @abc.abstractmethod
    def _release(self, error: str) -> None:
        """Release the threads that wait for messages or outcomes."""


class Intake:
    """Hands messages from the connection's thread to the reader's. Thread-safe.

    Args:
        max_bytes: size of the bodies beyond which the connection should stop reading from its socket.
        on_room: called in the reader's thread when there is room again after that.
    """

    def __init__(self, max_bytes: int, on_room: Callable[[], object]) -> None:
        self._max_bytes = max_bytes
        self._on_room = on_room
        self._messages: deque[Incoming] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._error: str | None = None
        self._was_full = False

    def put(self, message: Incoming) -> bool:
        with self._changed:
            self._messages.append(message)
            self._size += len(message.body)
            self._changed.notify()
            self._was_full = self._size > self._max_bytes
            return not self._was_full

    def take(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        """Remove and return the next messages; wait for the first one at most `seconds`. Raises `Unavailable`."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._messages and self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._error is not None:
                raise Unavailable(self._error)
            if not self._messages:
                return []
            taken, size = take_batch(self._messages, max_messages, max_bytes, lambda message: len(message.body))
            self._size -= size
            has_room = self._was_full and self._size <= self._max_bytes
            self._was_full = self._was_full and not has_room
        if has_room:
            self._on_room()
        return taken

    @property
    def has_room(self) -> bool:
        return self._size <= self._max_bytes

    def end(self, error: str) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()
