"""Database routers that send the outbox to one database of the test run, and leave everything else on `default`."""

from typing import Any

from django_outbox.models import OutboxMessage


class OutboxRouter:
    """Writes the outbox to a database; reads it there or from another one, as from a replica."""

    def __init__(self, alias: str, replica: str = "") -> None:
        self._alias, self._replica = alias, replica or alias

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self._replica if model is OutboxMessage else None

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return self._alias if model is OutboxMessage else None


class NotOnMariaDB:
    """Keeps the table of the outbox off one database."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if (db, app_label) == ("mariadb", "django_outbox") else None


class OnlyDefault:
    """Keeps the table of the outbox off all databases but one."""

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if db != "default" and app_label == "django_outbox" else None


ROUTERS = {"default": [], **{alias: [OutboxRouter(alias)] for alias in ("postgresql", "mariadb", "mysql")}}
"""The setting DATABASE_ROUTERS that sends the outbox to an alias."""
