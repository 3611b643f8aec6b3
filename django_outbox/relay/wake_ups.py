"""Wake-ups: idle workers wait for work of their publisher; PostgreSQL notifies the relay of it."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager
from functools import partial

from django.db import connections

from django_outbox.conf import get_settings
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.service.state import ServiceState
from django_outbox.stores import get_store
from django_outbox.stores.notifications import listen
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe
from django_outbox.utils.threads import in_background, own_connection


class WakeUps:
    """Lets idle workers of a relay wait until there is work for their publisher, or until the relay is stopping.

    Args:
        short_wait: waits up to this long are put off only by workers that have waited in vain.
    """

    def __init__(self, service: ServiceState, short_wait: float = LIMITS.first_idle_wait) -> None:
        self._service = service
        self._short_wait = short_wait
        self._awake: set[str] = set()
        self._polled_at: dict[tuple[str, bool], float] = {}
        self._looked_at: dict[tuple[str, bool], float] = {}

    def wake(self, names: Iterable[str]) -> None:
        """Wake one worker for each name, usually a publisher: one that waits, or else the next to wait."""
        names = set(names)
        with self._service.changed:
            if not names <= self._awake:
                self._awake |= names
                self._service.changed.notify_all()

    def hear(self, publisher_aliases: Set[str], notified: Set[tuple[str, str]] | None) -> None:
        """Wake a worker of each of these publishers that was notified; None means all."""
        self.wake(publisher_aliases if notified is None else publisher_aliases & {alias for _, alias in notified})

    def wait(self, publisher_alias: str, names: frozenset[str], seconds: float, looked_at: float = 0.0) -> bool:
        """Wait at most this long, and return whether there was a wake-up with one of these names.

        Workers of a publisher poll in turn: the time counts from the last one of them that waited in vain, and a long
        time also from the last one that looked. Those that stand by, which have no names, delay no other, because they
        do not look for new messages.

        Args:
            looked_at: when this worker began to look for the last time.
        """
        turn = publisher_alias, bool(names)
        turns = {(publisher_alias, True), turn}
        known = [self._polled_at, self._looked_at] if seconds > self._short_wait else [self._polled_at]

        def last_poll() -> float:
            return max(times.get(each, 0.0) for times in known for each in turns)

        service, left = self._service, seconds
        with service.changed:
            self._looked_at[turn] = max(looked_at, self._looked_at.get(turn, 0.0))
            polled_at = last_poll()
            while not service.changed.wait_for(lambda: service.stopping or not self._awake.isdisjoint(names), left):
                if (last := last_poll()) <= polled_at:
                    break
                polled_at = last
                left = min(polled_at + seconds - time.monotonic(), seconds)
            woken = not self._awake.isdisjoint(names)
            self._awake -= names
            if not woken:
                self._polled_at[turn] = time.monotonic()
        return woken


@contextmanager
def listening(
    using: str, hear: Callable[[Set[tuple[str, str]] | None], object], limits: Limits = LIMITS, *, channel: str = ""
) -> Iterator[None]:
    """Listen until the end of the block, if `OUTBOX["NOTIFY"]` is set and the database has notifications.

    Args:
        hear: called, in the listener's thread, with what `notifications.listen` yields.
    """
    if not (get_settings().notify and get_store(connections[using]).can_wake):
        yield
        return
    work = partial(_listen, using, hear, limits, channel)
    # The database may not answer at the end.
    with in_background(work, name="outbox-listener", patience=2 * limits.listen_time):
        yield


def _listen(
    using: str,
    hear: Callable[[Set[tuple[str, str]] | None], object],
    limits: Limits,
    channel: str,
    left: threading.Event,
) -> None:
    """Listen until the event is set, over an own connection, and reconnect when that is lost."""
    losses = 0
    while not left.is_set():
        try:
            with own_connection(using):
                for notified in listen(get_store(connections[using]), limits.listen_time, channel):
                    losses = 0
                    hear(notified)
                    if left.is_set():
                        return
            logger.info(
                "Database %(database)r: no notifications reach the relay, so it polls. It needs psycopg 3, and no "
                "connection pool like PgBouncer's transaction mode between the relay and PostgreSQL.",
                event="relay.polling",
                database=using,
            )
            return
        except Exception as error:
            losses += 1
            seconds = limits.reconnect_wait.after(losses)
            logger.warning(
                "The connection that listens to database %(database)r was lost: %(reason)s. Polling, and "
                "reconnecting in %(seconds).1f s.",
                event="relay.listener_lost",
                database=using,
                reason=describe(error).rstrip("."),
                seconds=seconds,
            )
            left.wait(seconds)
