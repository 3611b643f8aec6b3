"""Statements that PostgreSQL has prepared for a session: planned once, and several of them in one round trip.

They are prepared by SQL and not by the protocol, whose prepared statements cannot be sent together. A session that a
connection pooler shares with other clients cannot keep them, so there, and with psycopg2, they are not used.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db import DatabaseError
from django.db.backends.base.base import BaseDatabaseWrapper

LOST = ("0A000", "26000", "42P05")
"""The codes of a statement whose columns have other types since a migration, that does not exist, or that exists
already. The last two show that the session was reset, or has other clients."""

_are_prepared: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
"""Whether the statements are prepared, by the driver's connections."""


def prepare(connection: BaseDatabaseWrapper, list_statements: Callable[[], Mapping[str, str]]) -> bool:
    """Prepare statements unless that was done before, and return whether this connection can execute them.

    Args:
        list_statements: returns the statements by name and types of parameters, such as `due(text)`.
    """
    from django.db.backends.postgresql import psycopg_any  # noqa: PLC0415 - needs a driver

    connection.ensure_connection()
    driver = connection.connection
    if driver not in _are_prepared:
        _are_prepared[driver] = False
        with connection.cursor() as session:
            # A cursor that binds on the server sends one statement at a time.
            if psycopg_any.is_psycopg3 and isinstance(session.cursor, psycopg_any.ClientCursor):
                try:
                    session.execute("SELECT pg_backend_pid()")
                    # A pooler reports another number.
                    if session.fetchone() == (driver.info.backend_pid,):
                        session.execute(";".join(f"PREPARE {name} AS {sql}" for name, sql in list_statements().items()))
                        _are_prepared[driver] = True
                except DatabaseError:
                    # If the table is missing, or the connection is lost, the next statement shows it.
                    return False
    return _are_prepared[driver]


def execute(
    connection: BaseDatabaseWrapper, first: str, *calls: tuple[str, Sequence[Any]]
) -> list[list[tuple[Any, ...]]]:
    """Execute prepared statements together after a first one, and return the rows of each.

    Args:
        first: a statement without arguments.
        calls: the names of prepared statements that return rows, and their arguments.
    """
    texts = [first, *(f"EXECUTE {name}({', '.join(['%s'] * len(arguments))})" for name, arguments in calls)]
    found = []
    with connection.cursor() as session:
        session.execute(";".join(texts), [argument for _, arguments in calls for argument in arguments])
        for _ in calls:
            session.nextset()
            found.append(session.fetchall())
    return found


def note_lost(driver: object, error: DatabaseError) -> bool:
    """Use the statements no more if an error shows that the session has lost them; return whether it does."""
    is_lost = getattr(error.__cause__, "sqlstate", None) in LOST
    if is_lost:
        _are_prepared[driver] = False
    return is_lost
