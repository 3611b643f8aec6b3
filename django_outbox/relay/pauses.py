"""Paused publishers and types, as a relay knows them: read at most once a second, and only while the relay works."""

import threading
import time
from collections.abc import Callable, Collection, Set
from contextlib import nullcontext, suppress
from typing import Any

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_outbox.db.transactions import is_usable
from django_outbox.models import Pause
from django_outbox.relay.watchdog import DatabaseCalls
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe


class Pauses:
    """The pauses of a relay's publishers. All workers of the relay share them. Thread-safe.

    If the pauses cannot be read, because the table or the right to read it is missing, that is logged once, and what is
    known remains: at first, that nothing is paused.

    Args:
        interval: seconds for which a result of the query is used.
        max_seconds: time after which the connection is ended if the query hangs.
    """

    def __init__(
        self,
        using: str,
        publisher_aliases: Collection[str],
        interval: float,
        *,
        calls: DatabaseCalls | None = None,
        max_seconds: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._using = using
        self._publisher_aliases = frozenset(publisher_aliases)
        self._interval = interval
        self._calls = calls or DatabaseCalls()
        self._max_seconds = max_seconds
        self._clock = clock
        # By publisher and type; the type is empty if the whole publisher is paused.
        self._paused: frozenset[tuple[str, str]] = frozenset()
        # Every idle relay reads once a second, and making the query would take longer than reading.
        self._sql: Any = None
        self._read_at: float | None = None
        self._failed = False
        self._lock = threading.Lock()

    def for_schema(self) -> "Pauses":
        """Return the pauses of the same publishers in another schema."""
        return Pauses(
            self._using, self._publisher_aliases, self._interval, calls=self._calls, max_seconds=self._max_seconds
        )

    def refresh(self) -> None:
        """Read the pauses if the last result is too old. Call it outside a claim."""
        # The lock is held during the query, so that one worker reads for all. A connection that hangs must not hold up
        # the other workers, so they wait only for as long as a result is used, and then read by themselves.
        locked = self._lock.acquire(timeout=self._interval)
        try:
            if self._read_at is None or self._clock() - self._read_at >= self._interval:
                self._read()
        finally:
            if locked:
                self._lock.release()

    def is_paused(self, publisher_alias: str) -> bool:
        """Return whether a publisher was paused when the pauses were read last. Makes no query."""
        return (publisher_alias, "") in self._paused

    def paused_types(self, publisher_alias: str) -> frozenset[str]:
        """Return the types of a publisher that were paused when the pauses were read last. Makes no query."""
        paused = self._paused
        return frozenset(type for alias, type in paused if type and alias == publisher_alias) if paused else frozenset()

    def _read(self) -> None:
        connection = connections[self._using]
        # A savepoint, because in a test's own transaction a failed query would make all others fail.
        savepoint = transaction.atomic(using=self._using) if connection.in_atomic_block else nullcontext()
        try:
            with self._calls.watch(connection, self._max_seconds), savepoint, connection.cursor() as session:
                if self._sql is None:
                    pauses = Pause.objects.filter(resumed_at=None).values_list("publisher", "type")
                    self._sql = pauses.query.get_compiler(self._using).as_sql()
                session.execute(*self._sql)
                found = frozenset(row for row in session.fetchall() if row[0] in self._publisher_aliases)
        except (DatabaseError, InterfaceError) as error:
            self._note_failure(error)
            return
        self._read_at, self._failed = self._clock(), False
        before, self._paused = self._paused, found
        _report(before, found)

    def _note_failure(self, error: Exception) -> None:
        connection = connections[self._using]
        usable = False
        with suppress(DatabaseError, InterfaceError):
            usable = connection.in_atomic_block or is_usable(connection)
        if not usable:
            # The database is unavailable, which the next claim reports. Read the pauses again then.
            connection.close()
            return
        self._read_at = self._clock()
        if not self._failed:
            self._failed = True
            logger.warning(
                "Database %(database)r: the pauses cannot be read, so that pausing has no effect: %(reason)s",
                event="relay.pauses_unreadable",
                database=self._using,
                reason=describe(error),
            )


def _report(before: Set[tuple[str, str]], after: Set[tuple[str, str]]) -> None:
    for publisher, type in sorted(before ^ after):
        what = f"Publisher {publisher!r}" + (f": the type {type!r}" if type else "")
        if (publisher, type) in after:
            logger.warning("%s is paused.", what, event="relay.paused", publisher=publisher, type=type)
        else:
            logger.warning("%s is no longer paused.", what, event="relay.resumed", publisher=publisher, type=type)
