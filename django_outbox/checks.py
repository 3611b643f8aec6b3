"""System checks: what is wrong with the settings is said at start, each with an id and a remedy.

E001 to E003 and E005 are found by `django_outbox.conf`, E004 there too, E006 to E008 by `django_outbox.publishers`.
"""

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.db import connections, router

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
        connection = connections[alias]
        if not connection.settings_dict["ENGINE"] or not _holds_outbox(alias):
            continue
        if connection.vendor not in KNOWN_VENDORS:
            problems.append(
                Error(
                    f"The outbox cannot work on the database {alias!r}, a {connection.vendor}.",
                    hint=f"It knows {', '.join(KNOWN_VENDORS)}. Route OutboxMessage to one of them.",
                    id="django_outbox.E010",
                )
            )
        elif connection.vendor == "sqlite":
            if not connection.features.can_return_columns_from_insert:
                problems.append(
                    Error(
                        f"The SQLite library behind the database {alias!r} is too old for the outbox.",
                        hint="SQLite 3.35 or newer is needed, for UPDATE ... RETURNING.",
                        id="django_outbox.E011",
                    )
                )
        elif not connection.features.has_select_for_update_skip_locked:
            problems.append(
                Error(
                    f"The server of the database {alias!r} does not know SKIP LOCKED.",
                    hint="PostgreSQL 15, MySQL 8.4 or MariaDB 10.11, or newer, is needed.",
                    id="django_outbox.E011",
                )
            )
        if connection.vendor != "postgresql" and connection.timezone_name != "UTC":
            problems.append(
                Error(
                    f"DATABASES[{alias!r}] has a TIME_ZONE, so that Django stores local times there.",
                    hint="Remove it: the database's own clock is compared in UTC.",
                    id="django_outbox.E012",
                )
            )
    return problems


def _holds_outbox(alias: str) -> bool:
    return router.allow_migrate_model(alias, OutboxMessage)
