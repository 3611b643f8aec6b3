"""Fields of the tables: IDs, payloads, partitions of keys, and text that is compared exactly."""

import sys
import uuid
import zlib
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.db.functions import CurrentTransaction


class PayloadField(models.JSONField):
    """A JSON value of any kind. None is stored as JSON's `null`; Django's own field would store SQL's NULL."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return self.get_db_prep_value(value, connection)
        return super().get_db_prep_save(value, connection)


class PartitionField(models.IntegerField):  # type: ignore[type-arg]
    """A number derived from the message's key, the same in every process: 0 without a key, otherwise 1 or more.

    About one pair of keys in 2,000,000,000 shares a number; these two keys are then ordered together.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if add:
            setattr(model_instance, self.attname, partition_of(model_instance.key))  # type: ignore[attr-defined]
        return getattr(model_instance, self.attname)


class BlocksKeyField(models.BooleanField):  # type: ignore[type-arg]
    """Whether later messages of the key wait for this one; True for a new message with a key."""

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if add:
            pending = model_instance.available_at is not None  # type: ignore[attr-defined]
            blocks = bool(model_instance.key) and (pending or getattr(model_instance, self.attname))  # type: ignore[attr-defined]
            setattr(model_instance, self.attname, blocks)
        return getattr(model_instance, self.attname)


class TransactionIdField(models.BigIntegerField):  # type: ignore[type-arg]
    """The transaction that wrote the row, as PostgreSQL numbers transactions; NULL on other databases.

    See https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"null": True, "editable": False, "db_default": CurrentTransaction(), **options})

    def db_type(self, connection: BaseDatabaseWrapper) -> str | None:
        return "xid8" if connection.vendor == "postgresql" else super().db_type(connection)

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        # An INSERT that is repeated belongs to another transaction.
        return self.get_default() if add else super().pre_save(model_instance, add)

    def get_db_prep_value(self, value: Any, connection: BaseDatabaseWrapper, prepared: bool = False) -> Any:
        # PostgreSQL converts no integer to its type.
        return str(value) if connection.vendor == "postgresql" and isinstance(value, int) else value

    def from_db_value(self, value: Any, *_: object) -> int | None:
        return None if value is None else int(value)


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that is compared character by character on every database, except for spaces at its end.

    By default MySQL and MariaDB ignore case: messages handled by `Billing` would count as handled by `billing`.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> dict[str, Any]:
        parameters: dict[str, Any] = super().db_parameters(connection)
        if connection.vendor == "mysql":
            parameters["collation"] = "utf8mb4_bin"
        return parameters


def partition_of(key: str) -> int:
    """Return the partition of a key: 0 for an empty key, otherwise 1 to 2,147,483,647, derived from its CRC-32."""
    return 1 + zlib.crc32(key.encode()) % (2**31 - 1) if key else 0


if sys.version_info >= (3, 14):
    from uuid import uuid7 as _uuid7
else:
    from uuid6 import uuid7 as _uuid7


def uuid7() -> uuid.UUID:
    """Return a new UUID of version 7. Migrations refer to this name on every version of Python."""
    return _uuid7()
