"""Wake-ups: idle workers wait until there is work for their publisher."""

import threading
from collections.abc import Iterable


class WakeUps:
    """Lets idle workers of a relay wait until there is work for their publisher."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake: set[str] = set()

    def wake(self, publisher_aliases: Iterable[str]) -> None:
        """Wake one worker of each publisher: one that waits, or else the next that would wait."""
        with self._condition:
            self._awake.update(publisher_aliases)
            self._condition.notify_all()

    def wait(self, publisher_alias: str, seconds: float) -> bool:
        """Wait at most this long, and return whether there was a wake-up for this worker."""
        with self._condition:
            woken = self._condition.wait_for(lambda: publisher_alias in self._awake, seconds)
            self._awake.discard(publisher_alias)
        return woken
