"""`KeyLock`: locks on keys, and the leases of messages."""

from django.db import models


class KeyLock(models.Model):
    """A lock on keys, or the lease of a message that is handled outside of a transaction.

    For locks on keys, MySQL and MariaDB lock the row, and SQLite stores the time until which the lock is held.
    PostgreSQL has advisory locks instead. A lease is a row with the time until which it is held, on every database.
    """

    number = models.BigIntegerField(primary_key=True)
    held_until = models.DateTimeField(null=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.number)
