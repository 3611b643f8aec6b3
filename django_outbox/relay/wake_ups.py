"""Wake-ups: idle workers wait for work of their publisher; PostgreSQL notifies the relay of it."""

import threading
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager

from django.db import connections

from django_outbox.conf import get_settings
from django_outbox.logs import logger
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.stores import get_store
from django_outbox.text import describe
from django_outbox.threads import in_background, own_connection


class WakeUps:
    """Lets idle workers of a relay wait until there is work for their publisher."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._awake: set[str] = set()

    def wake(self, names: Iterable[str]) -> None:
        """Wake one worker for each name, which mostly is a publisher: one that waits, or else the next to wait."""
        with self._condition:
            self._awake.update(names)
            self._condition.notify_all()

    def wait(self, names: Set[str], seconds: float) -> bool:
        """Wait at most this long, and return whether there was a wake-up with one of these names."""
        with self._condition:
            woken = self._condition.wait_for(lambda: not self._awake.isdisjoint(names), seconds)
            self._awake -= names
        return woken


@contextmanager
def listening(
    using: str, wake_ups: WakeUps, publisher_aliases: Iterable[str], limits: Limits = LIMITS
) -> Iterator[None]:
    """Listen until the end of the block, if `OUTBOX["NOTIFY"]` is set and the database has notifications."""
    if not (get_settings().notify and get_store(connections[using]).can_wake):
        yield
        return
    listener = Listener(using, wake_ups, publisher_aliases, limits)
    # The database may not answer at the end.
    with in_background(listener.listen, name="outbox-listener", patience=2 * limits.listen_time):
        yield


class Listener:
    """Listens over its own database connection, and reconnects when that is lost."""

    def __init__(self, using: str, wake_ups: WakeUps, publisher_aliases: Iterable[str], limits: Limits) -> None:
        self._using = using
        self._wake_ups = wake_ups
        self._publisher_aliases = set(publisher_aliases)
        self._limits = limits
        self._losses = 0

    def listen(self, left: threading.Event) -> None:
        """Wake the workers until the event is set, or until it turns out that the connection gets no notifications."""
        while not left.is_set():
            try:
                with own_connection(self._using):
                    if not self._listen(left):
                        logger.info(
                            "Database %(database)r: a connection pool between the relay and PostgreSQL passes on no "
                            "notifications, so the relay polls. PgBouncer's transaction mode does that.",
                            event="relay.polling",
                            database=self._using,
                        )
                        return
            except Exception as error:
                self._losses += 1
                seconds = self._limits.reconnect_wait.after(self._losses)
                logger.warning(
                    "The connection that listens to database %(database)r was lost: %(reason)s. Polling, and "
                    "reconnecting in %(seconds).1f s.",
                    event="relay.listener_lost",
                    database=self._using,
                    reason=describe(error).rstrip("."),
                    seconds=seconds,
                )
                left.wait(seconds)

    def _listen(self, left: threading.Event) -> bool:
        """Listen until the event is set; return False at once if the connection receives no notifications."""
        store = get_store(connections[self._using])
        for notified in store.listen(self._limits.listen_time):
            self._losses = 0
            self._wake_ups.wake(self._publisher_aliases if notified is None else notified & self._publisher_aliases)
            if left.is_set():
                return True
        return False
