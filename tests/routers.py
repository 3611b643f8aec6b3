"""Database routers that send the outbox to one of the databases of the test run, and leave all else on `default`."""

from typing import Any

from django_outbox.models import OutboxMessage


class OutboxRouter:
    """Routes the outbox to `alias`."""

    alias = "default"

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return self.alias if model is OutboxMessage else None

    db_for_write = db_for_read


class ToPostgreSQL(OutboxRouter):
    alias = "postgresql"


class ToMariaDB(OutboxRouter):
    alias = "mariadb"


ROUTERS: dict[str, list[str]] = {
    "default": [],
    "postgresql": ["tests.routers.ToPostgreSQL"],
    "mariadb": ["tests.routers.ToMariaDB"],
}
"""The setting DATABASE_ROUTERS that sends the outbox to an alias."""
