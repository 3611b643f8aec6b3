"""Growing waits: after each failure in a row the next wait is longer, up to a ceiling."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["fixed", "linear", "exponential"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits after 1, 2, 3... failures in a row. It never gives up.

    Args:
        delay: seconds to wait after the first failure, above 0.
        factor: how many times longer each further wait is than the one before, at least 1; for "exponential" only.
        max_delay: longest wait in seconds, before jitter: clients that have reached the ceiling must not return
            together either.
        jitter: maximum share of the wait that is added at random, 0 to 1, so that clients that failed together do not
            return together.
        kind: how the wait grows: "fixed" (not at all), "linear" (by `delay` each time) or "exponential" (by `factor`
            each time).
    """

    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 600.0
    jitter: float = 0.1
    kind: Kind = "exponential"

    def after(self, failures: int, *, rand: Callable[[], float] = random.random) -> float:
        """Return the seconds to wait, never more than `max_delay * (1 + jitter)`.

        Args:
            failures: number of failures in a row, at least 1.
            rand: a source of numbers from 0 to 1, for the jitter.
        """
        try:
            seconds = min(_GROWTH[self.kind](self, failures), self.max_delay)
        except OverflowError:
            seconds = self.max_delay
        return seconds * (1 + self.jitter * rand())


_GROWTH: dict[Kind, Callable[[Backoff, int], float]] = {
    "fixed": lambda backoff, failures: backoff.delay,
    "linear": lambda backoff, failures: backoff.delay * float(failures),
    "exponential": lambda backoff, failures: backoff.delay * float(backoff.factor) ** (failures - 1),
}
