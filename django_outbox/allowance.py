"""A limit on how often something is done."""

import threading
import time
from collections.abc import Callable


class Allowance:
    """Permits something a limited number of times in each interval.

    Args:
        count: how often.
        seconds: the length of the interval.
        clock: returns the time in seconds.
    """

    def __init__(self, count: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._count = count
        self._seconds = seconds
        self._clock = clock
        self._began = clock()
        self._used = 0
        self._lock = threading.Lock()

    def take(self) -> bool:
        """Return whether it is permitted once more, and if so, count it."""
        with self._lock:
            now = self._clock()
            if now - self._began >= self._seconds:
                self._began, self._used = now, 0
            if self._used >= self._count:
                return False
            self._used += 1
            return True
