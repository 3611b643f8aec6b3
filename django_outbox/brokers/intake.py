"""The messages that a connection has received, until a reader takes them."""

import threading
import time
from collections import deque
from collections.abc import Callable

from django_outbox.brokers.consumer import Incoming, Unavailable, take_batch


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
        self._is_held = False

    def put(self, message: Incoming) -> bool:
        """Add a message, and return whether there is room for more."""
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
            while not self._has_next and self._error is None and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            if self._error is not None:
                raise Unavailable(self._error)
            if not self._has_next:
                return []
            taken, size = take_batch(self._messages, max_messages, max_bytes, lambda message: len(message.body))
            self._size -= size
            has_room = self._was_full and self._size <= self._max_bytes
            self._was_full = self._was_full and not has_room
        if has_room:
            self._on_room()
        return taken

    def hold(self) -> None:
        """Hand over no messages until `release`."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        with self._changed:
            self._is_held = False
            self._changed.notify()

    def clear(self) -> None:
        with self._changed:
            self._messages.clear()
            self._size = 0
            has_room, self._was_full = self._was_full, False
        if has_room:
            self._on_room()

    @property
    def _has_next(self) -> bool:
        return bool(self._messages) and not self._is_held

    @property
    def is_empty(self) -> bool:
        return not self._messages

    @property
    def has_room(self) -> bool:
        """Whether the messages are smaller than the maximum."""
        return self._size <= self._max_bytes

    @property
    def error(self) -> str | None:
        return self._error

    def end(self, error: str) -> None:
        """Note that the connection has ended. Only the first call counts."""
        with self._changed:
            if self._error is None:
                self._error = error
            self._changed.notify_all()
