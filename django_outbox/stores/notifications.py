"""Notifications of PostgreSQL, with which callers of `enqueue` wake idle relays."""

import time
import uuid
from collections.abc import Collection, Generator, Iterator
from contextlib import closing
from selectors import EVENT_READ, DefaultSelector

from django_outbox.stores.base import Store

CHANNEL = "SELECT 'django_outbox_' || relnamespace FROM pg_class WHERE oid = '{table}'::regclass"
"""The channel on which relays listen, one for each schema with the table; the payload is the alias of a publisher."""

NOTIFY = f"SELECT pg_notify(({CHANNEL}), publisher) FROM unnest(%s::text[]) publisher"

PROBES = 6
"""Number of notifications that a connection misses until it counts as unable to listen."""


def notify(store: Store, publishers: Collection[str]) -> None:
    """Notify the relays that listen that there is work for these publishers."""
    store.fetch(NOTIFY, [list(publishers)])


def listen(store: Store, seconds: float, channel: str = "") -> Iterator[set[tuple[str, str]] | None]:
    """Yield notifications, forever, and at least once in the given number of seconds.

    Each has the name of its channel, and the alias of a publisher that was woken. The caller may listen to more
    channels over the same connection than this one, which by default is the channel of the schema.

    As soon as it listens, it yields None: messages committed before that may be for any publisher. It ends if this
    connection receives no notifications, because a pool gives each transaction another session, or because of the
    driver.

    Raises:
        DatabaseError: the connection is lost.
    """
    connection = store.connection
    connection.ensure_connection()
    if not callable(connection.connection.notifies):
        # psycopg2 has a list there, and cannot wait for notifications.
        return
    channel = channel or store.fetch(CHANNEL)[0][0]
    store.execute(f"LISTEN {channel}")
    if not (yield from _receives_notifications(store, channel, seconds)):
        store.execute(f"UNLISTEN {channel}")
        return
    # A listening session is always idle.
    store.execute("SET idle_session_timeout TO 0")
    yield None
    # psycopg's own wait wakes up ten times a second.
    with DefaultSelector() as selector:
        selector.register(connection.connection, EVENT_READ)
        while True:
            with connection.wrap_database_errors:
                heard = {(each.channel, each.payload) for each in connection.connection.notifies(timeout=0)}
            yield heard
            selector.select(seconds)


def _receives_notifications(store: Store, channel: str, seconds: float) -> Generator[set[tuple[str, str]], None, bool]:
    """Test whether this session receives notifications: send up to `PROBES` of them, `seconds` apart.

    After a time without one, yield an empty set, so that the caller can stop.

    Behind PgBouncer in transaction mode, the session that listens belongs to no client while this connection is idle.
    """
    probe = f"probe {uuid.uuid4()}"
    with closing(store.connection.copy()) as other:
        for _ in range(PROBES):
            with other.cursor() as sender:
                sender.execute("SELECT pg_notify(%s, %s)", [channel, probe])
            end = time.monotonic() + seconds
            with store.connection.wrap_database_errors:
                while (left := end - time.monotonic()) > 0:
                    heard = store.connection.connection.notifies(timeout=left, stop_after=1)
                    if probe in [notification.payload for notification in heard]:
                        return True
            yield set()
    return False
