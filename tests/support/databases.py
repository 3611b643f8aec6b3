"""Databases of the test run: their connections, statements and temporary databases on the same servers."""

import itertools
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import quote

import MySQLdb
import psycopg
from django.conf import settings
from django.db import OperationalError, connections
from django.db.models import Model
from django.test.utils import CaptureQueriesContext

from tests.support.waiting import eventually

_numbers = itertools.count(1)

TABLES = ("django_outbox_outboxmessage", "shop_receipt", "shop_order", "shop_receivedmessage")


def someone_waits(using: str) -> bool:
    """Whether another connection to this database waits for a lock.

    MySQL and MariaDB report waits for the whole server, where other tests run, and statements for each database.
    """
    statements = {
        "postgresql": [
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND wait_event_type = 'Lock' AND backend_type = 'client backend'"
        ],
        "mysql": [
            "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'",
            "SELECT count(*) FROM information_schema.processlist "
            "WHERE db = DATABASE() AND id <> CONNECTION_ID() AND command = 'Query'",
        ],
    }
    with connections[using].cursor() as cursor:

        def count(statement: str) -> int:
            cursor.execute(statement)
            return int(cursor.fetchone()[-1])

        return all(count(statement) > 0 for statement in statements[connections[using].vendor])


def statements(queries: CaptureQueriesContext) -> list[str]:
    """The first words of the captured queries, without those that open and end transactions."""
    words = [query["sql"].split()[0].upper() for query in queries.captured_queries]
    return [word for word in words if word not in {"BEGIN", "COMMIT", "SAVEPOINT", "RELEASE", "ROLLBACK"}]


@contextmanager
def another_alias(alias: str, **options: Any) -> Iterator[str]:
    """A second connection to the database of `alias`, with other OPTIONS, under an alias for this thread alone."""
    name = f"{alias}_{next(_numbers)}"
    connection = connections[alias].copy(alias=name)
    connection.settings_dict["OPTIONS"].update(options)
    connections[name] = connection
    try:
        yield name
    finally:
        connection.close()
        del connections[name]


def isolation(using: str, level: str) -> dict[str, Any]:
    """The OPTIONS that make a level the default of a connection; SQLite has but one."""
    if using == "postgresql":
        return {"isolation_level": psycopg.IsolationLevel[level.upper().replace(" ", "_")]}
    return {"isolation_level": level} if connections[using].vendor == "mysql" else {}


def serialization_error(using: str, level: str) -> str:
    """Return what a locking read raises if the row is newer than the transaction's snapshot; blank if it reads it."""
    if level != "repeatable read":
        return ""
    if using == "postgresql":
        return "could not serialize access"
    with connections[using].cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'innodb_snapshot_isolation'")
        found = cursor.fetchone()
    return "Record has changed since last read" if found and found[1] == "ON" else ""


@contextmanager
def without_table(using: str, model: type[Model]) -> Iterator[None]:
    """Hide the table of a model, as if it had not been migrated."""
    quote, name = connections[using].ops.quote_name, model._meta.db_table
    table, hidden = quote(name), quote(f"hidden_{name}")
    with connections[using].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME TO {hidden}")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {hidden} RENAME TO {table}")


@contextmanager
def read_only() -> Iterator[None]:
    """Make new sessions of PostgreSQL read-only, as on a standby."""
    name = connections["postgresql"].settings_dict["NAME"]
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only TO on')
    try:
        yield
    finally:
        with connections["postgresql"].cursor() as cursor:
            cursor.execute(f'ALTER DATABASE "{name}" RESET default_transaction_read_only')


def kill(using: str) -> None:
    """End the session of this connection, as an administrator does."""
    if using == "postgresql":
        end_session(using, lambda cursor, id: cursor.execute("SELECT pg_terminate_backend(%s)", [id]))
    else:
        end_session(using, lambda cursor, id: cursor.execute(f"KILL {id}"))


def end_session(using: str, end: Callable[[Any, int], object]) -> None:
    """End the session of this connection, and wait until the server has rolled it back, with its locks."""
    connection = connections[using]
    if connection.vendor == "sqlite":
        end(None, 0)
        return
    if connection.vendor == "postgresql":
        id, sessions = connection.connection.info.backend_pid, "pg_stat_activity WHERE pid"
    else:
        id, sessions = connection.connection.thread_id(), "information_schema.processlist WHERE id"

    def has_ended(cursor: Any) -> bool:
        cursor.execute(f"SELECT count(*) FROM {sessions} = %s", [id])
        return bool(cursor.fetchone()[0] == 0)

    with closing(connection.copy()) as other, other.cursor() as cursor:
        end(cursor, id)
        eventually(lambda: has_ended(cursor), "the session has ended")


def end_other_sessions(using: str) -> int:
    """End all sessions on this database but this one, and return how many there were."""
    connection = connections[using]
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            # Only a superuser may end one of the server's own, such as an autovacuum worker's.
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            return len(cursor.fetchall())
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()")
        ids = [id for (id,) in cursor.fetchall()]
        for id in ids:
            # One that has ended meanwhile cannot be killed.
            with suppress(OperationalError):
                cursor.execute(f"KILL {id}")
        return len(ids)


class Database:
    """A database on the server of an alias of `tests.settings`, created now and dropped at the end."""

    def __init__(self, alias: str) -> None:
        self._server = settings.DATABASES[alias]
        self._postgresql = alias == "postgresql"
        self.name = f"test_outbox{settings.RUN}_{uuid.uuid4().hex[:8]}"
        user = ":".join(quote(self._server[part], safe="") for part in ("USER", "PASSWORD"))
        scheme = "postgres" if self._postgresql else "mysql"
        self.url = f"{scheme}://{user}@{self._server['HOST']}:{self._server['PORT']}/{self.name}"

    def rows(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        return self._run(self.name, sql, params)

    def count(self, condition: str, table: str = TABLES[0]) -> int:
        """Return how many rows of a table, by default the outbox, fulfil a condition in SQL."""
        count: int = self.rows(f"SELECT count(*) FROM {table} WHERE {condition}")[0][0]
        return count

    def locked(self) -> int:
        """Return how many pending messages are claimed by a relay."""
        free = self.rows(f"SELECT id FROM {TABLES[0]} WHERE available_at IS NOT NULL FOR UPDATE SKIP LOCKED")
        return self.count("available_at IS NOT NULL") - len(free)

    def empty(self) -> None:
        for table in TABLES:
            self.rows(f"DELETE FROM {table}")

    @contextmanager
    def session(self) -> Iterator[Any]:
        """The cursor of a session that commits each statement."""
        with closing(self._connect(self.name)) as connection, closing(connection.cursor()) as cursor:
            yield cursor

    def __enter__(self) -> "Database":
        self._run("", f"CREATE DATABASE {self.name}" + ("" if self._postgresql else " CHARACTER SET utf8mb4"))
        return self

    def __exit__(self, *_: object) -> None:
        if self._postgresql:
            # WITH (FORCE) fails while an autovacuum worker is there, which only a superuser may end. Without it, the
            # server ends its own workers.
            self._run(
                "",
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = %s AND backend_type = 'client backend'",
                (self.name,),
            )
        self._run("", f"DROP DATABASE {self.name}")

    def _run(self, name: str, sql: str, params: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with closing(self._connect(name)) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall()) if cursor.description else []

    def _connect(self, name: str) -> Any:
        server = {"host": self._server["HOST"], "port": int(self._server["PORT"]), "user": self._server["USER"]}
        password = self._server["PASSWORD"]
        if self._postgresql:
            return psycopg.connect(**server, password=password, dbname=name or "postgres", autocommit=True)
        return MySQLdb.connect(**server, password=password, database=name, charset="utf8mb4", autocommit=True)


@contextmanager
def open_transaction(using: str) -> Iterator[Any]:
    """A cursor of another session on PostgreSQL, in a transaction that has a number already."""
    session = connections.create_connection(using)
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()")
            yield cursor
    finally:
        session.close()
