"""Facts about a deployment: this process, its database and migrations, and the publishers that its messages need."""

import os
import secrets
import socket
from functools import cache
from importlib import metadata
from pathlib import Path

from django.apps import apps
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.executor import MigrationExecutor
from django.db.models import QuerySet

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.stores.publishers import publishers_in_use


def find_version() -> str:
    """Return the version of the installed package; "unknown" if the project runs it from its source."""
    try:
        return metadata.version("django-transactional-outbox")
    except metadata.PackageNotFoundError:
        return "unknown"


MAX_HOST_LENGTH = 220
"""Maximum characters of the host name in the name of a process."""


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


def find_unapplied_migrations(connection: BaseDatabaseWrapper) -> list[str]:
    """Return the outbox's migrations that were not applied to a database, such as `django_outbox.0001_initial`.

    Those of its installed apps belong to them: the inbox, and the results of Django's tasks.

    Raises:
        DatabaseError: the database is unavailable.
    """
    labels = {app.label for app in apps.get_app_configs() if f"{app.name}.".startswith("django_outbox.")}
    executor = MigrationExecutor(connection)
    wanted = [node for node in executor.loader.graph.leaf_nodes() if node[0] in labels]
    plan = executor.migration_plan(wanted)
    return [f"{migration.app_label}.{migration.name}" for migration, _ in plan if migration.app_label in labels]


def find_unknown_publishers(using: str) -> list[str]:
    """Return the aliases that pending messages name and `OUTBOX["PUBLISHERS"]` does not have.

    Each query reads a few entries of an index, however many messages there are.

    Raises:
        DatabaseError: the database is unavailable.
    """
    known = get_settings().publishers
    return [
        alias
        for alias in publishers_in_use(OutboxMessageQuerySet(OutboxMessage, using=using))
        if alias not in known and any(rows.exists() for rows in _pending_of(using, alias))
    ]


def _pending_of(using: str, alias: str) -> "list[QuerySet[OutboxMessage, OutboxMessage]]":
    """Return queries for pending messages of a publisher: without a key, and with one. Each has its index."""
    pending = OutboxMessage.objects.using(using).pending().filter(publisher=alias)
    return [pending.filter(partition=0), pending.filter(blocks_key=True, processed_at__isnull=True)]
