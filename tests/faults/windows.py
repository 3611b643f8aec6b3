"""Times in which some messages must not arrive, because an operator or their delay withheld them, and all others must
arrive as usual."""

from dataclasses import dataclass

USUAL = 5.0
"""Seconds in which a message arrives while nothing is broken: the longest delay of a writer, and a busy machine."""


@dataclass
class Window:
    """Such a time, by the monotonic clock.

    Attributes:
        ids: messages that must not arrive until the time with each.
        keys: keys that wait, wholly or in part.
        types: types that are paused: what was enqueued in this time must not arrive in it.
    """

    name: str
    begin: float
    end: float
    ids: dict[str, float]
    keys: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()

    def withholds(self, id: str, type: str, enqueued: float, arrived: float) -> bool:
        """Return whether a message must not arrive at this time."""
        if id in self.ids:
            return self.begin < arrived < self.ids[id]
        return type in self.types and self.begin < enqueued and arrived < self.end

    def lets_go_on(self, key: str, type: str, enqueued: float) -> bool:
        """Return whether a message that was enqueued at this time has to arrive as usual."""
        waits = key in self.keys or type in self.types
        return not waits and self.begin < enqueued < self.end - USUAL
