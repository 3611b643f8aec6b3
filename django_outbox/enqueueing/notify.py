"""Notify the relay of new messages after the caller's transaction has committed.

A notification only shortens the wait. The relay polls as well, so a lost notification delays a message by at most the
poll interval. Without `OUTBOX["NOTIFY"]`, or on a database without notifications, the relay only polls.
"""

import threading
import time
from collections.abc import Iterable

from django.db import connections, transaction

from django_outbox.conf import get_settings
from django_outbox.stores import get_store

DEBOUNCE = 0.005
"""Minimum time in seconds between two notifications of one process for the same publisher. All sessions of a PostgreSQL
server share one lock for NOTIFY, so a notification for each of 1,000 commits a second would make the commits wait. The
relay finds the messages committed in between when it wakes up."""

_lock = threading.Lock()
_notified_at: dict[tuple[str, str], float] = {}


def notify_after_commit(using: str, publisher_aliases: Iterable[str]) -> None:
    """Notify the relay when the current transaction commits. An error in doing so is logged and not raised.

    Args:
        using: the database alias of the messages.
        publisher_aliases: the aliases of their publishers.
    """
    connection = connections[using]
    # With autocommit turned off, Django has no on_commit hooks outside an atomic block.
    has_hooks = connection.in_atomic_block or connection.get_autocommit()
    if has_hooks and get_settings().notify and get_store(connection).can_wake:
        aliases = frozenset(publisher_aliases)

        # Not a `partial`: Django 5.2 logs the error of a robust hook under its `__qualname__`, which a partial lacks.
        def notify() -> None:
            _notify(using, aliases)

        transaction.on_commit(notify, using=using, robust=True)


def _notify(using: str, publisher_aliases: frozenset[str]) -> None:
    now = time.monotonic()
    with _lock:
        due = [
            alias
            for alias in sorted(publisher_aliases)
            if now - _notified_at.get((using, alias), -DEBOUNCE) >= DEBOUNCE
        ]
        _notified_at.update({(using, alias): now for alias in due})
    if due:
        get_store(connections[using]).wake(due)
