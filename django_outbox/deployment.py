"""Facts about a deployment: this process, its database, tables and migrations, and the publishers of its messages."""

import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from django.apps import apps
from django.db import DatabaseError, InterfaceError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import Min, Model, Q

from django_outbox.conf import get_settings
from django_outbox.db.errors import shows_missing_right
from django_outbox.db.routing import describe_denied
from django_outbox.db.transactions import is_usable
from django_outbox.exceptions import NotMigrated
from django_outbox.models import KeyLock, OutboxMessage, OutboxMessageQuerySet, StreamPosition
from django_outbox.stores import get_store
from django_outbox.text import describe

MAX_HOST_LENGTH = 220
"""Maximum characters of the host name in the name of a process."""

REQUIRED: Sequence[type[Model]] = (OutboxMessage, KeyLock, StreamPosition)
"""The tables without which nothing can be delivered. A relay goes on without the tables of the monitoring."""

MAX_PUBLISHERS = 100
"""Maximum number of publishers that are looked for: each costs a short query."""


def find_version() -> str:
    """Return the version of the installed package; "unknown" if the project runs it from its source."""
    try:
        return metadata.version("django-transactional-outbox")
    except metadata.PackageNotFoundError:
        return "unknown"


def name_process() -> str:
    """Return a name of this process that no other one has: `host:pid` and a random part.

    Containers that share the network of their host have one host name, and each of them may be process 1.
    """
    # Its own part after a fork.
    pid = os.getpid()
    return f"{socket.gethostname()[:MAX_HOST_LENGTH]}:{pid}:{_random_part(pid)}"


@cache
def _random_part(pid: int) -> str:
    return secrets.token_hex(3)


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
    """Return the `missing_schema` of a database in a sentence, with the remedy; blank if nothing is missing."""
    alias, missing = connection.alias, missing_schema(connection, models)
    if missing and (denied := describe_denied(alias, models)):
        return f"The database {alias!r} lacks {missing}: {denied}"
    return missing and f'The database {alias!r} lacks {missing}. Run "manage.py migrate --database={alias}".'


def missing_schema(connection: BaseDatabaseWrapper, models: Sequence[type[Model]] = REQUIRED) -> str:
    """Return the first table or column of these models that this database lacks; blank if there is none."""
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


def publishers_in_use(messages: OutboxMessageQuerySet) -> list[str]:
    """Return the publishers of the pending messages, including those that were removed from the settings.

    It jumps through the index from one publisher to the next, with one query each. If the index is not partial, it also
    finds publishers with processed or failed messages only.
    """
    rows = messages.order_by()
    if connections[messages.db].features.supports_partial_indexes:
        rows = rows.pending()
    found: list[str] = []
    publisher = rows.aggregate(next=Min("publisher"))["next"]
    while publisher is not None and len(found) < MAX_PUBLISHERS:
        found.append(publisher)
        publisher = rows.filter(publisher__gt=publisher).aggregate(next=Min("publisher"))["next"]
    return found


def find_unknown_publishers(using: str) -> list[str]:
    """Return the aliases that pending messages name and `OUTBOX["PUBLISHERS"]` does not have.

    Each query reads a few entries of an index, however many messages there are.
    """
    messages = OutboxMessageQuerySet(OutboxMessage, using=using)
    # Messages without a key, and with one: each has its index.
    parts = (Q(partition=0), Q(blocks_key=True, processed_at__isnull=True))
    return [
        alias
        for alias in publishers_in_use(messages)
        if alias not in get_settings().publishers
        and any(messages.pending().filter(part, publisher=alias).exists() for part in parts)
    ]
