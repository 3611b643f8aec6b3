"""The fields that hold a message's payload and the partition of its key."""

import zlib
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class PayloadField(models.JSONField):
    """A JSON value of any kind, `null` among them, where Django's own field would store None as SQL's NULL."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return self.get_db_prep_value(value, connection)
        return super().get_db_prep_save(value, connection)


class PartitionField(models.IntegerField):  # type: ignore[type-arg]
    """A number made of the message's key, the same for the same key in every process: 0 for none, else from 1 on.

    Two keys may share a number, one pair in two thousand million: then they are ordered together too.
    """

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        if add:
            setattr(model_instance, self.attname, partition_of(model_instance.key))  # type: ignore[attr-defined]
        return getattr(model_instance, self.attname)


def partition_of(key: str) -> int:
    """Return the partition of a key: 0 for a blank one, else its CRC-32 brought into 1 to 2,147,483,647."""
    return 1 + zlib.crc32(key.encode()) % (2**31 - 1) if key else 0
