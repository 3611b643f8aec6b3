"""Counts of each publisher's messages since the relay started."""

import threading
from collections.abc import Iterable

from django_outbox.relay.tally import Tally


class Counters:
    """Adds up each publisher's tallies. Thread-safe.

    Args:
        publisher_aliases: the publishers that are served.
    """

    def __init__(self, publisher_aliases: Iterable[str]) -> None:
        self._tallies = {alias: Tally() for alias in publisher_aliases}
        self._lock = threading.Lock()

    def add(self, publisher_alias: str, tally: Tally) -> None:
        """Add the tally of a batch."""
        with self._lock:
            self._tallies[publisher_alias] += tally

    def read(self) -> dict[str, Tally]:
        """Return the tallies so far, by publisher."""
        with self._lock:
            return self._tallies.copy()
