"""What a relay hears from the database: a thread that turns the database's notifications into wake-ups."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, connections

from django_outbox.conf import get_settings
from django_outbox.databases import get_database
from django_outbox.retry import RetryPolicy, backoff
from django_outbox.wake_ups import WakeUps

logger = logging.getLogger("django_outbox")

RECONNECT_WAIT = RetryPolicy(delay=0.5, factor=2.0, max_delay=30.0, jitter=1.0)
"""How long to wait when the connection is lost; the relay polls meanwhile."""

HEARING_TIME = 0.5
"""Seconds that it listens before it looks whether it is to stop."""


@contextmanager
def listening(using: str, wake_ups: WakeUps, publishers: Iterable[str]) -> Iterator[None]:
    """Listen until the end, where wake-ups are switched on and the database has them.

    Args:
        using: the database alias.
        wake_ups: whom to wake.
        publishers: the aliases of the publishers that are served.
    """
    if not (get_settings().wake_up and get_database(connections[using]).can_wake):
        yield
        return
    listener = Listener(using, wake_ups, publishers)
    listener.start()
    try:
        yield
    finally:
        listener.stop()


class Listener:
    """Listens from `start` to `stop`, over a database connection of its own, and makes a new one when it is lost.

    Args:
        using: the database alias.
        wake_ups: whom to wake.
        publishers: the aliases of the publishers that are served.
    """

    def __init__(self, using: str, wake_ups: WakeUps, publishers: Iterable[str]) -> None:
        self._using = using
        self._wake_ups = wake_ups
        self._publishers = set(publishers)
        self._losses = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="outbox-listener", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End it; it takes up to `HEARING_TIME`."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except (DatabaseError, InterfaceError) as error:
                self._losses += 1
                seconds = backoff(self._losses, RECONNECT_WAIT)
                reason = " ".join(str(error).split()).rstrip(".")
                logger.warning(
                    "Wake-ups from database %r are lost: %s. Polling, and listening again in %.1f s.",
                    self._using,
                    reason,
                    seconds,
                )
                self._stopped.wait(seconds)
            finally:
                connections[self._using].close()

    def _listen(self) -> None:
        database = get_database(connections[self._using])
        for heard in database.listen(HEARING_TIME):
            self._losses = 0
            self._wake_ups.wake(self._publishers if heard is None else heard & self._publishers)
            if self._stopped.is_set():
                return
