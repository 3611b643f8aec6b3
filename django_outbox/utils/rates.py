"""Limits on how often something is done, and on the share of the time that it takes."""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

SPARING = 20
"""The pause after some work, as a multiple of the seconds that it took: it takes a twentieth of the time."""


@dataclass(slots=True)
class Throttle:
    """Limits some work to a share of the time, not counting what is cheap. The first time, it is allowed.

    Args:
        cheap: seconds that the work may take each time without being delayed.
        max_interval: seconds after which the work is allowed again however long it took.
        min_interval: minimum number of seconds between the end of the work and its next beginning.
        sparing: the pause after the work, as a multiple of the seconds that it took.
        saved: seconds of pauses that may be saved up while there is no work, so that some of it may follow at once.
    """

    cheap: float = 0.0
    max_interval: float = math.inf
    min_interval: float = 0.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sparing: float = SPARING
    saved: float = 0.0
    _opens_at: float = -math.inf
    _paused_until: float = -math.inf

    @property
    def is_open(self) -> bool:
        return self.clock() >= self._opens_at

    def spend(self, seconds: float) -> None:
        """Delay the work in proportion to the seconds that it has just taken."""
        now = self.clock()
        pause = min(max(seconds - self.cheap, 0.0) * self.sparing, self.max_interval)
        self._paused_until = min(max(self._paused_until, now - self.saved), now) + pause
        self._opens_at = max(self._paused_until, now + self.min_interval)

    def reset(self) -> None:
        """Allow the work now, however long it took."""
        self._opens_at = -math.inf


class Allowance:
    """Permits something a limited number of times in each interval."""

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
