"""Statements that PostgreSQL has prepared for a session: planned once, and several of them in one round trip.

They are prepared by SQL and not by the protocol, whose prepared statements cannot be sent together. A session that a
connection pooler shares with other clients cannot keep them, so there, and with psycopg2, they are not used.
"""

import weakref
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.stores.base import Store

LOST = ("0A000", "26000", "42P05")
"""The codes of a statement whose columns have other types since a migration, that does not exist, or that exists
already. The last two show that the session was reset, or has other clients."""

_prepared: weakref.WeakKeyDictionary[Any, set[str] | None] = weakref.WeakKeyDictionary()
"""The statements that are prepared, by the driver's connections; None if a connection cannot keep any."""


def prepare(store: Store, statements: Mapping[str, str]) -> bool:
    """Prepare statements unless that was done before, and return whether this connection can execute them.

    Args:
        statements: by name and types of parameters, such as `due(text)`, with placeholders for the names of tables.
    """
    store.connection.ensure_connection()
    driver = store.connection.connection
    if driver not in _prepared:
        _prepared[driver] = set() if _keeps_statements(store.connection) else None
    known = _prepared[driver]
    if known is None or statements.keys() <= known:
        return known is not None
    new = [(name, store.name_tables(sql)) for name, sql in statements.items() if name not in known]
    try:
        with store.connection.cursor() as session:
            session.execute(";".join(f"PREPARE {name} AS {sql}" for name, sql in new))
    except DatabaseError:
        # If the table is missing, or the connection is lost, the next statement shows it.
        _prepared[driver] = None
        return False
    known.update(statements)
    return True


def _keeps_statements(connection: BaseDatabaseWrapper) -> bool:
    from django.db.backends.postgresql import psycopg_any  # noqa: PLC0415 - needs a driver

    try:
        with connection.cursor() as session:
            # A cursor that binds on the server sends one statement at a time.
            if not (psycopg_any.is_psycopg3 and isinstance(session.cursor, psycopg_any.ClientCursor)):
                return False
            session.execute("SELECT pg_backend_pid()")
            # A pooler reports another number.
            return bool(session.fetchone() == (connection.connection.info.backend_pid,))
    except DatabaseError:
        return False


def execute(
    connection: BaseDatabaseWrapper, first: str, *calls: tuple[str, Sequence[Any]]
) -> list[list[tuple[Any, ...]]]:
    """Execute prepared statements, by name and arguments, together after a first one; return the rows of each."""
    text = _join(first, *((name, len(arguments)) for name, arguments in calls))
    found = []
    # A new cursor each time, because some backends choose the tenant's schema when they make one.
    with connection.cursor() as session:
        session.execute(text, [argument for _, arguments in calls for argument in arguments])
        # Without Django's wrapper, because all results have arrived.
        results: Any = session.cursor
        for _ in calls:
            results.nextset()
            found.append(results.fetchall())
    return found


@lru_cache(maxsize=100)
def _join(first: str, *calls: tuple[str, int]) -> str:
    """Return a statement and those that are prepared, by name and number of arguments, in one string."""
    return ";".join([first, *(f"EXECUTE {name}({', '.join(['%s'] * count)})" for name, count in calls)])


def note_lost(driver: object, error: DatabaseError) -> bool:
    """Use the statements no more if an error shows that the session has lost them; return whether it does."""
    is_lost = getattr(error.__cause__, "sqlstate", None) in LOST
    if is_lost:
        _prepared[driver] = None
    return is_lost
