"""What a database has: its name, its tables and columns, and the migrations that were applied."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from django.apps import apps
from django.db import DatabaseError, InterfaceError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Model

from django_outbox.db.errors import shows_missing_right
from django_outbox.db.routing import describe_denied
from django_outbox.db.transactions import is_usable
from django_outbox.exceptions import NotMigrated
from django_outbox.models import KeyLock, OutboxMessage, StreamPosition
from django_outbox.stores import get_store
from django_outbox.utils.text import describe

REQUIRED: Sequence[type[Model]] = (OutboxMessage, KeyLock, StreamPosition)
"""The tables without which nothing can be delivered. A relay goes on without the tables of the monitoring."""


def describe_database(connection: BaseDatabaseWrapper) -> str:
    """Return the alias, the kind, the name and the address of a database, without a query and without a password."""
    settings = connection.settings_dict
    kind = str(settings["ENGINE"]).rpartition(".")[2]
    name = settings["NAME"]
    shown = Path(name).name if connection.vendor == "sqlite" else str(name or "")
    host, port = str(settings["HOST"] or ""), str(settings["PORT"] or "")
    address = f" at {host}{':' if port else ''}{port}" if host else ""
    return f"{connection.alias!r} ({' '.join(filter(None, [kind, shown]))}{address})"


def close_after_error(
    connection: BaseDatabaseWrapper, error: Exception, models: Sequence[type[Model]] = REQUIRED
) -> str:
    """Close the connection on which an error of the database occurred, and return the reason.

    The next query opens a new connection. Inside a transaction, the error is raised again.

    Raises:
        NotMigrated: the error comes from a table or a column of these models that is missing.
    """
    if connection.in_atomic_block:
        raise error
    problem = ""
    with suppress(DatabaseError, InterfaceError):
        # MySQL and MariaDB list no table on which the role has no right.
        if is_usable(connection) and not shows_missing_right(error):
            problem = describe_missing_schema(connection, models)
    if problem:
        raise NotMigrated(problem) from error
    connection.close()
    return describe(error).rstrip(".")


def describe_missing_schema(connection: BaseDatabaseWrapper, models: Sequence[type[Model]] = REQUIRED) -> str:
    """Return the `missing_schema` of a database in a sentence, with the remedy; empty if nothing is missing."""
    alias, missing = connection.alias, missing_schema(connection, models)
    if missing and (denied := describe_denied(alias, models)):
        return f"The database {alias!r} lacks {missing}: {denied}"
    return missing and f'The database {alias!r} lacks {missing}. Run "manage.py migrate --database={alias}".'


def missing_schema(connection: BaseDatabaseWrapper, models: Sequence[type[Model]] = REQUIRED) -> str:
    """Return the first table or column of these models that this database lacks; empty if there is none."""
    with connection.cursor() as cursor:
        tables = set(connection.introspection.table_names(cursor, include_views=True))
        for model in models:
            if model is StreamPosition and not get_store(connection).streams:
                # MariaDB shows no table to a role without a privilege on it.
                continue
            table = model._meta.db_table
            if table not in tables:
                return f"the table {table!r}"
            description = connection.introspection.get_table_description(cursor, table)
            columns = {column.name for column in description}
            for field in model._meta.concrete_fields:
                if field.column not in columns:
                    return f"the column {field.column!r} of the table {table!r}"
    return ""


def find_unapplied_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the outbox's migrations that were not applied to a database, such as `django_outbox.0001_initial`.

    Those of its installed apps belong to them: the inbox, and the results of Django's tasks.
    """
    labels = {app.label for app in apps.get_app_configs() if f"{app.name}.".startswith("django_outbox.")}
    executor = MigrationExecutor(connection)
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] in labels]
    plan = executor.migration_plan(wanted)
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan if migration.app_label in labels]
