"""Limits some work to a share of the time."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SPARING = 20
"""The pause after some work, as a multiple of the seconds that it took beyond what counts as cheap."""

CHEAP_SWEEP = 0.005
CHEAP_ROW = 0.00001
"""Seconds that a sweep may take without delaying the next one: in all, and in addition for each row that it finds."""

MAX_SWEEP_INTERVAL = 10.0
"""Seconds until the next sweep, however long the last one took: the longest that a late message waits for one."""


@dataclass(slots=True)
class Throttle:
    """Limits some work to a share of the time, by default a twentieth, not counting what is cheap.

    Args:
        cheap: seconds that the work may take each time without being delayed.
        max_interval: seconds after which the work is allowed again however long it took.
        clock: the time in seconds.
        sparing: the pause after the work, as a multiple of the seconds that it took.
    """

    cheap: float
    max_interval: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    sparing: int = SPARING
    _opens_at: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether the work is allowed now."""
        return self.clock() >= self._opens_at

    def spend(self, seconds: float) -> None:
        """Delay the work in proportion to the seconds that it has just taken."""
        self._opens_at = self.clock() + min(max(seconds - self.cheap, 0.0) * self.sparing, self.max_interval)

    def reset(self) -> None:
        """Allow the work now, however long it took."""
        self._opens_at = 0.0
