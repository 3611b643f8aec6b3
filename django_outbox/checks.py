"""System checks: what is wrong with the settings is said at start, each with an id and a remedy.

E001 to E005 are found by `django_outbox.conf`, E006 to E008 by `django_outbox.publishers`, the others here.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.conf import SettingsProblem, parse
from django_outbox.databases import KNOWN_VENDORS
from django_outbox.models import OutboxMessage
from django_outbox.publishers import build_publisher


@register()
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check `OUTBOX`: every key and value, and that every publisher can be constructed."""
    settings, problems = parse(getattr(django_settings, "OUTBOX", None))
    if settings is not None:
        for alias, config in settings.publishers.items():
            try:
                build_publisher(alias, config)
            except SettingsProblem as problem:
                problems.append(problem)
    return [Error(problem.message, hint=problem.hint, id=f"django_outbox.{problem.check_id}") for problem in problems]


@register()
def check_time_zone(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Check that times are stored in UTC, which is what the database's clock is compared with."""
    if django_settings.USE_TZ:
        return []
    return [
        Error(
            "The outbox needs USE_TZ = True.",
            hint="Without it Django stores local times, which the database's clock cannot be compared with.",
            id="django_outbox.E009",
        )
    ]


@register(Tags.database)
def check_databases(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """Check that each database that holds the outbox can be claimed from."""
    problems: list[CheckMessage] = []
    for alias in databases or []:
        if router.allow_migrate_model(alias, OutboxMessage):
            connection = connections[alias]
            if connection.vendor in KNOWN_VENDORS:
                problems += _check_version(connection) + _check_utc(connection) + _check_characters(connection)
            else:
                problems += _unknown_vendor(connection)
    return problems


def _unknown_vendor(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    return [
        Error(
            f"The outbox cannot work on the database {connection.alias!r}, a {connection.vendor}.",
            hint=f"It knows {', '.join(KNOWN_VENDORS)}. Route OutboxMessage to one of them.",
            id="django_outbox.E010",
        )
    ]


def _check_version(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    features = connection.features
    if connection.vendor == "sqlite":
        able, lack = features.can_return_columns_from_insert, "RETURNING"
    else:
        able, lack = features.has_select_for_update_skip_locked, "SKIP LOCKED"
    if able:
        return []
    return [
        Error(
            f"The database {connection.alias!r} is too old for the outbox: it does not know {lack}.",
            hint="PostgreSQL 15, MySQL 8.4, MariaDB 10.11 or SQLite 3.35, or newer, is needed.",
            id="django_outbox.E011",
        )
    ]


def _check_utc(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    if connection.vendor == "postgresql" or connection.timezone_name == "UTC":
        return []
    return [
        Error(
            f"DATABASES[{connection.alias!r}] has a TIME_ZONE, so that Django stores local times there.",
            hint="Remove it: the database's own clock is compared in UTC.",
            id="django_outbox.E012",
        )
    ]


def _check_characters(connection: BaseDatabaseWrapper) -> list[CheckMessage]:
    if connection.vendor != "mysql":
        return []
    table = OutboxMessage._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT character_set_name FROM information_schema.columns WHERE table_schema = DATABASE() "
            "AND table_name = %s AND column_name IN ('type', 'topic', 'key', 'publisher', 'error')",
            [table],
        )
        found = {name for (name,) in cursor.fetchall()}
        if not found:
            # Before the first migration the table will have what the database has.
            cursor.execute("SELECT @@character_set_database")
            found = {name for (name,) in cursor.fetchall()}
    if found == {"utf8mb4"}:
        return []
    return [
        Error(
            f"The outbox in the database {connection.alias!r} stores text as {', '.join(sorted(found))}, which cannot "
            "hold every character: an emoji in a type or in a broker's error would be refused.",
            hint=f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4; before the first migration, ALTER DATABASE.",
            id="django_outbox.E013",
        )
    ]
