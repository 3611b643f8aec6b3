"""The field that holds a message's payload."""

from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper


class PayloadField(models.JSONField):
    """A JSON value of any kind, `null` among them, where Django's own field would store None as SQL's NULL."""

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        if value is None:
            return self.get_db_prep_value(value, connection)
        return super().get_db_prep_save(value, connection)
