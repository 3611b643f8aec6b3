"""Stores claim and settle messages, one module for each kind of database; `get_store` selects by vendor."""

from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.module_loading import import_string

from django_outbox.stores.base import Store
from django_outbox.stores.leases import Lease
from django_outbox.stores.types import Claim, Failed, Held, NewRow, Purged, Retried, Settlement

__all__ = [
    "Claim",
    "Failed",
    "Held",
    "Lease",
    "NewRow",
    "Purged",
    "Retried",
    "Settlement",
    "Store",
    "find_store",
    "get_store",
]

_STORES = {
    "postgresql": "django_outbox.stores.postgresql.PostgreSQLStore",
    "mysql": "django_outbox.stores.mysql.MySQLStore",
    "sqlite": "django_outbox.stores.sqlite.SQLiteStore",
}


def find_store(connection: BaseDatabaseWrapper) -> Store | None:
    """Return the store for a connection; None if the outbox does not support this kind of database."""
    if connection.vendor not in _STORES:
        return None
    store: type[Store] = import_string(_STORES[connection.vendor])
    return store(connection)


def get_store(connection: BaseDatabaseWrapper) -> Store:
    """Return the store for a connection.

    Raises:
        ImproperlyConfigured: the outbox does not support this kind of database.
    """
    store = find_store(connection)
    if store is None:
        raise ImproperlyConfigured(
            f"The outbox does not support the database {connection.alias!r} (vendor {connection.vendor!r}); "
            f"it supports {', '.join(_STORES)}."
        )
    return store
