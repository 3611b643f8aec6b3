"""`KeyLock`: locks on keys, for databases without advisory locks."""

from django.db import models


class KeyLock(models.Model):
    """A lock on keys, for databases whose only transaction-level locks are row locks.

    MySQL and MariaDB lock the row. SQLite stores the time until which the lock is held. PostgreSQL does not use this
    table, because it has advisory locks.
    """

    number = models.BigIntegerField(primary_key=True)
    held_until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.number)
