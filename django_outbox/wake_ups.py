"""The wake-up, on both sides: a committed message tells the relay that there is something to do.

It only shortens the wait. The relay polls all the same, so that a wake-up that is lost delays a message by the poll
interval at the most. Where it is switched off, or the database has no such thing, there is polling alone.
"""

import threading
import time
from collections.abc import Iterable

from django.db import connections, transaction

from django_outbox.conf import get_settings
from django_outbox.databases import get_database

DEBOUNCE = 0.005
"""Seconds within which a process wakes the relay once. PostgreSQL's NOTIFY takes a lock that all its sessions share, so
that one for each of a thousand commits a second would make these commits wait. What is committed meanwhile is found
when the relay, once awake, looks again."""

_lock = threading.Lock()
_last: dict[tuple[str, str], float] = {}


def wake_after_commit(using: str, publishers: Iterable[str]) -> None:
    """Wake the relay when the current transaction is committed; whatever goes wrong there is logged and no more.

    Args:
        using: the database alias of the messages.
        publishers: the aliases of their publishers.
    """
    if get_settings().wake_up and get_database(connections[using]).can_wake:
        aliases = frozenset(publishers)

        # Not a `partial`: Django 5.2 logs the error of a robust hook under its `__qualname__`, which a partial lacks.
        def wake() -> None:
            _wake(using, aliases)

        transaction.on_commit(wake, using=using, robust=True)


def _wake(using: str, publishers: frozenset[str]) -> None:
    now = time.monotonic()
    with _lock:
        asleep = [alias for alias in sorted(publishers) if now - _last.get((using, alias), -DEBOUNCE) >= DEBOUNCE]
        _last.update({(using, alias): now for alias in asleep})
    if asleep:
        get_database(connections[using]).wake(asleep)


class WakeUps:
    """Lets a relay's workers wait until there is something to do for their publisher."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake: set[str] = set()

    def wake(self, publishers: Iterable[str]) -> None:
        """Let one worker of each publisher go on: one that waits, or else the next that would."""
        with self._condition:
            self._awake.update(publishers)
            self._condition.notify_all()

    def wait(self, publisher: str, seconds: float) -> bool:
        """Wait at most so long, and say whether there was a wake-up for this worker."""
        with self._condition:
            woken = self._condition.wait_for(lambda: publisher in self._awake, seconds)
            self._awake.discard(publisher)
        return woken
