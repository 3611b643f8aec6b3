"""Distinguishes a database without the outbox's tables from one that is unavailable."""

from collections.abc import Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_outbox.exceptions import NotMigrated
from django_outbox.models import KeyLock, OutboxMessage

REQUIRED: Sequence[type[Model]] = (OutboxMessage, KeyLock)
"""The tables without which nothing can be delivered. A relay goes on without the tables of the monitoring."""


def require_schema(connection: BaseDatabaseWrapper, error: Exception, models: Sequence[type[Model]] = REQUIRED) -> None:
    """Raise NotMigrated if an error of the database comes from a table or a column of these models that is missing."""
    missing = ""
    with suppress(DatabaseError, InterfaceError):
        if connection.connection is not None and connection.is_usable():
            missing = missing_schema(connection, models)
    if missing:
        raise NotMigrated(
            f'The database {connection.alias!r} lacks {missing}. Run "manage.py migrate --database={connection.alias}".'
        ) from error


def missing_schema(connection: BaseDatabaseWrapper, models: Sequence[type[Model]] = REQUIRED) -> str:
    """Return the first table or column of these models that this database lacks; blank if there is none.

    Raises:
        DatabaseError: the database is unavailable.
    """
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor, include_views=True))
        for model in models:
            table = model._meta.db_table
            if not router.allow_migrate_model(connection.alias, model):
                continue
            if table not in tables:
                return f"the table {table!r}"
            description = connection.introspection.get_table_description(cursor, table)
            columns = {column.name for column in description}
            for field in model._meta.concrete_fields:
                if field.column not in columns:
                    return f"the column {field.column!r} of the table {table!r}"
    return ""
