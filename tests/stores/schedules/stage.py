"""The stage of the schedules: one database, a connection for each actor, and short lock timeouts."""

import datetime
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_outbox.relay.sources import table
from tests.stores.schedules.model import Row
from tests.support.databases import another_alias

PATIENCE: dict[str, dict[str, Any]] = {
    # All actors are in one thread, so an actor that waits for a lock would wait forever.
    "postgresql": {"options": "-c lock_timeout=50 -c synchronous_commit=off"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
    "sqlite": {"timeout": 0.1, "init_command": "PRAGMA synchronous = OFF"},
}

ROWS = """
SELECT id, CASE WHEN available_at IS NOT NULL THEN 'pending' WHEN processed_at IS NOT NULL THEN 'processed'
    ELSE 'failed' END, attempts, blocks_key
FROM django_outbox_outboxmessage
"""

GONE = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT 1 FROM pg_stat_activity WHERE pid = %s"),
    "mysql": ("SELECT CONNECTION_ID()", "SELECT 1 FROM information_schema.processlist WHERE id = %s"),
}

START = datetime.datetime(2030, 1, 1, tzinfo=datetime.timezone.utc)


class SQLiteClock:
    """A clock for connections to SQLite that only moves when the schedule moves it, so that leases expire on demand.

    It replaces the `now` of SQLite's own `strftime`.
    """

    def __init__(self) -> None:
        self.now = START
        self._real = sqlite3.connect(":memory:")

    def install(self, sender: object, connection: BaseDatabaseWrapper, **_: object) -> None:
        """Give a new connection this clock: a receiver of `connection_created`."""
        if connection.vendor == "sqlite":
            connection.connection.create_function("strftime", -1, self._strftime)

    def _strftime(self, format: str, moment: str, *modifiers: str) -> str | None:
        if moment.lower() == "now":
            moment = self.now.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        places = ", ".join("?" for _ in modifiers)
        sql = f"SELECT strftime(?, ?{', ' if places else ''}{places})"
        text: str | None = self._real.execute(sql, (format, moment, *modifiers)).fetchone()[0]
        return text

    def close(self) -> None:
        """Close the connection that does the work."""
        self._real.close()


class Errors(logging.Handler):
    """Counts the errors that the store logs."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1


class Stage:
    """The connections of one run of many schedules."""

    def __init__(self, using: str, writers: list[str], relays: list[str]) -> None:
        self.using = using
        self.writers = writers
        self.relays = relays
        self.vendor = connections[using].vendor
        self.clock = SQLiteClock()
        self.errors = Errors()
        self.observer = self.operator = using

    @property
    def one_writer(self) -> bool:
        """Whether only one transaction at a time can write."""
        return self.vendor == "sqlite"

    def fetch(self, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        """Run a statement on the observer's connection and return its rows."""
        with connections[self.observer].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    def rows(self) -> dict[int, Row]:
        return {id: Row(state, attempts, bool(blocks)) for id, state, attempts, blocks in self.fetch(ROWS)}

    def reset(self) -> None:
        self.errors.count = 0
        self.clock.now = START
        self.fetch("DELETE FROM django_outbox_outboxmessage")

    def tick(self, seconds: float = 1.0) -> None:
        """Move the clock of SQLite forward."""
        self.clock.now += datetime.timedelta(seconds=seconds)

    def seconds(self) -> float:
        """The time of the relays, which moves with that of the schedule."""
        return (self.clock.now - START).total_seconds()

    def cut(self, alias: str) -> None:
        """End a session from the client's side, and wait until the server has noticed."""
        connection = connections[alias]
        session = None
        if self.vendor in GONE:
            own, alive = GONE[self.vendor]
            with connection.cursor() as cursor:
                cursor.execute(own)
                session = cursor.fetchone()[0]
        connection.connection.close()
        while session is not None and self.fetch(alive, [session]):
            time.sleep(0.0005)


@contextmanager
def staged(using: str, *, writers: int, relays: int) -> Iterator[Stage]:
    """Open the connections of a stage, and close them at the end."""
    vendor = connections[using].vendor
    with ExitStack() as stack:

        def aliases(count: int) -> list[str]:
            return [stack.enter_context(another_alias(using, **PATIENCE[vendor])) for _ in range(count)]

        stage = Stage(using, aliases(writers), aliases(relays))
        stage.observer, stage.operator = aliases(2)
        stack.callback(stage.clock.close)
        logger = logging.getLogger("django_outbox")
        logger.addHandler(stage.errors)
        stack.callback(logger.removeHandler, stage.errors)
        # Before any of them connects.
        connection_created.connect(stage.clock.install)
        stack.callback(connection_created.disconnect, stage.clock.install)
        with mock.patch.object(table, "boot_time", stage.seconds):
            yield stage
