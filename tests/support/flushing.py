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

_tables: dict[str, list[str]] = {}


def flush_quickly() -> None:
    """Let the tests do that instead of calling the command `flush`."""
    test_case: Any = TransactionTestCase
    test_case._fixture_teardown = _flush


def _flush(test: Any) -> None:
    _end_reports()
    for alias in test._databases_names(include_mirrors=False):
        connection = connections[alias]
        try:
            tables = _filled_tables(connection)
        except DatabaseError:
            # A test has changed the tables.
            tables = _find_tables(connection)
        if tables:
            ops = connection.ops
            ops.execute_sql_flush(ops.sql_flush(no_style(), tables, allow_cascade=True))
        add_key_locks(using=alias)


def _end_reports() -> None:
    """Wait for reports that a relay left behind because its database was slow: they would be rows of the next test."""
    for thread in threading.enumerate():
        if thread.name == "outbox-reports":
            thread.join(60)


def _filled_tables(connection: BaseDatabaseWrapper) -> list[str]:
    if connection.alias not in _tables:
        _tables[connection.alias] = _find_tables(connection)
    tables = _tables[connection.alias]
    # In PostgreSQL, deleted rows take room, which tests of plans would notice.
    is_filled = "pg_relation_size('{}') > 0" if connection.vendor == "postgresql" else "EXISTS (SELECT 1 FROM {})"
    columns = ", ".join(is_filled.format(connection.ops.quote_name(table)) for table in tables)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {columns}")
        return [table for table, filled in zip(tables, cursor.fetchone(), strict=True) if filled]


def _find_tables(connection: BaseDatabaseWrapper) -> list[str]:
    found = connection.introspection.django_table_names(only_existing=True, include_views=False)
    kept = KEPT | KEPT_ON_MYSQL if connection.vendor == "mysql" else KEPT
    return [table for table in found if table not in kept]
