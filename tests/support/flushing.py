"""A quick flush after each test that commits; Django's own takes longer than most of these tests.

It empties only the tables that have had rows, and leaves content types and permissions alone, which Django's would
delete and create again on each database.
"""

import threading
from typing import Any

from django.core.management.color import no_style
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.test import TransactionTestCase

from django_outbox.apps import add_key_locks

KEPT = {"django_content_type", "auth_permission"}
"""Tables that stay as they are."""

KEPT_ON_MYSQL = {"django_outbox_keylock"}
"""The same on MySQL and MariaDB, where the migration fills them. Rows that a test has deleted are added again."""

FEW_BYTES = 65_536
"""Size of a table of PostgreSQL up to which its rows are deleted; TRUNCATE, which writes new files, takes longer."""

_tables: dict[str, list[str]] = {}

_sessions: dict[str, BaseDatabaseWrapper] = {}
"""A session for each database of a server: Django closes its own after each such test, and opening one is slow."""


def flush_quickly() -> None:
    """Let the tests do that instead of calling the command `flush`."""
    test_case: Any = TransactionTestCase
    test_case._fixture_teardown = _flush


def prepare(connection: BaseDatabaseWrapper) -> None:
    if connection.vendor != "sqlite":
        _sessions[connection.alias] = connection.copy()


def close_sessions() -> None:
    """Close the sessions, so that the databases can be deleted."""
    for session in _sessions.values():
        session.close()


def _flush(test: Any) -> None:
    _end_reports()
    for alias in test._databases_names(include_mirrors=False):
        # A test may have left a transaction open.
        connections[alias].close()
        session = _sessions.get(alias, connections[alias])
        if session.connection is not None and not session.is_usable():
            # A test has ended all sessions.
            session.close()
        try:
            sizes = _measure(session)
        except DatabaseError:
            # A test has changed the tables.
            sizes = dict.fromkeys(_find_tables(session), FEW_BYTES + 1)
        if sizes:
            _empty(session, sizes)
        add_key_locks(using=alias)


def _end_reports() -> None:
    """Wait for reports that a relay left behind because its database was slow: they would be rows of the next test."""
    for thread in threading.enumerate():
        if thread.name == "outbox-reports":
            thread.join(60)


def _measure(session: BaseDatabaseWrapper) -> dict[str, int]:
    """Return the sizes of the tables that have had rows since they were emptied; outside PostgreSQL, 1."""
    if session.alias not in _tables:
        _tables[session.alias] = _find_tables(session)
    tables = _tables[session.alias]
    # In PostgreSQL, deleted rows take room, which tests of plans would notice.
    size = "pg_relation_size('{}')" if session.vendor == "postgresql" else "EXISTS (SELECT 1 FROM {})"
    columns = ", ".join(size.format(session.ops.quote_name(table)) for table in tables)
    with session.cursor() as cursor:
        cursor.execute(f"SELECT {columns}")
        return {table: size for table, size in zip(tables, cursor.fetchone(), strict=True) if size}


def _empty(session: BaseDatabaseWrapper, sizes: dict[str, int]) -> None:
    if session.vendor == "postgresql" and max(sizes.values()) <= FEW_BYTES:
        names = [session.ops.quote_name(table) for table in sizes]
        with session.cursor() as cursor:
            # One transaction, at whose end foreign keys are checked.
            cursor.execute("; ".join(f"DELETE FROM {name}" for name in names))
            cursor.execute(f"VACUUM {', '.join(names)}")
    else:
        statements = session.ops.sql_flush(no_style(), list(sizes), allow_cascade=True)
        session.ops.execute_sql_flush(statements)


def _find_tables(connection: BaseDatabaseWrapper) -> list[str]:
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    kept = KEPT | KEPT_ON_MYSQL if connection.vendor == "mysql" else KEPT
    return [table for table in found if table not in kept]
