"""Claim and settle, one module a database; `connection.vendor` chooses."""

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_outbox.databases.base import Claim, Database, Failed, Retried, Settlement

__all__ = ["KNOWN_VENDORS", "Claim", "Database", "Failed", "Retried", "Settlement", "get_database"]

_DATABASES = {
    "postgresql": "django_outbox.databases.postgresql.PostgreSQL",
    "mysql": "django_outbox.databases.mysql.MySQL",
    "sqlite": "django_outbox.databases.sqlite.SQLite",
}

KNOWN_VENDORS = tuple(_DATABASES)


def get_database(connection: BaseDatabaseWrapper) -> Database:
    """Return how this connection's database claims and settles.

    Raises:
        ImproperlyConfigured: the outbox does not know this kind of database.
    """
    if connection.vendor not in _DATABASES:
        raise ImproperlyConfigured(
            f"The outbox cannot work on the database {connection.alias!r}: it knows {', '.join(KNOWN_VENDORS)}, "
            f"not {connection.vendor}."
        )
    database: type[Database] = import_string(_DATABASES[connection.vendor])
    return database(connection)
