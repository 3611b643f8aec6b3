"""Conflicts of handlers with other transactions, such as deadlocks: batches shrink, and relays take turns."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django_outbox.retry import Backoff

MAX_CONFLICTS = 5
"""Number of conflicts in a row after which a message that conflicts again uses up an attempt."""

WAIT = Backoff(delay=0.05, max_delay=1.0, jitter=1.0)
"""Waits before a message that has conflicted is delivered again, from the second conflict in a row on."""

LOCK_WAIT = 0.1
"""Seconds for which a handler of a batch may wait for a lock. PostgreSQL looks for deadlocks after a second only, in
which the locks of all handlers of the batch are held."""

TURNS = Backoff(delay=1.0, factor=4.0, max_delay=60.0)
"""For how long the workers take turns: longer if they conflict soon again."""

MAX_TURN = 1.0
"""Maximum seconds to wait for the turn of another worker: its handler may hang."""


class Turns:
    """Lets one worker of a publisher at a time call handlers, for a while after a conflict. Thread-safe.

    Args:
        clock: returns the time in seconds.
        max_wait: maximum seconds to wait for the turn of another worker.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_wait: float = MAX_TURN) -> None:
        self._clock = clock
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._conflicts = 0
        self._began = self._end = -TURNS.max_delay

    def begin(self) -> None:
        """Take turns from now on, because there was a conflict."""
        now = self._clock()
        if now >= self._end:
            soon = now - self._end < self._end - self._began
            self._conflicts = self._conflicts + 1 if soon else 1
            self._began, self._end = now, now + TURNS.after(self._conflicts)

    @property
    def are_taken(self) -> bool:
        """Whether workers take turns now."""
        return self._clock() < self._end

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Wait for a turn, if workers take turns now, and keep it until the end of the block."""
        mine = self.are_taken and self._lock.acquire(timeout=self._max_wait)
        try:
            yield
        finally:
            if mine:
                self._lock.release()


class Conflicts:
    """The size of the batches of one worker.

    A batch holds the locks of all its handlers until it is committed. So handlers that seldom meet in a deadlock
    otherwise do so often, and a smaller batch holds fewer locks for a shorter time. A message that conflicts twice in a
    row is delivered alone.

    Args:
        turns: taken by the workers of the publisher.

    Attributes:
        turns: the same.
        in_a_row: number of conflicts of the same message in a row.
    """

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.in_a_row = 0
        self._id = 0
        self._size: int | None = None

    def limit(self, wanted: int) -> int:
        """Return the maximum number of messages in the next batch."""
        return wanted if self._size is None else min(wanted, self._size)

    def admit(self, id: int) -> bool:
        """Return whether a message that has conflicted may do so without using up an attempt."""
        self.in_a_row = self.in_a_row + 1 if id == self._id else 1
        self._id = id
        return self.in_a_row <= MAX_CONFLICTS

    def shrink(self, claimed: int) -> bool:
        """Make the next batch smaller than one of `claimed` messages; return whether batches had their full size."""
        self.turns.begin()
        full = self._size is None
        self._size = 1 if self.in_a_row > 1 else max(claimed // 2, 1)
        return full

    def grow(self, wanted: int) -> None:
        """Let the next batch be larger, after one without a conflict, up to `wanted` messages."""
        self.in_a_row = 0
        if self._size is not None:
            self._size *= 2
            if self._size >= wanted:
                self._size = None
