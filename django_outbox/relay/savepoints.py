"""A savepoint around code that may break the transaction, by accident or on purpose."""

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_outbox.stores import get_store


class TransactionBroken(Exception):
    """The savepoint is lost, so the whole transaction must be rolled back."""


class Savepoint:
    """A savepoint in an open transaction, which notices if the code inside it has broken the transaction.

    `transaction.atomic` trusts the connection's records of its blocks. Code that was interrupted within a block, or has
    entered one and not left it, has falsified them: a rollback would end at the wrong savepoint and keep a part of what
    was written.

    Args:
        connection: the connection, with a transaction open.

    Raises:
        Error: the database is unavailable.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        # It is None only outside of transactions.
        self._id = connection.savepoint() or ""
        connection.savepoint_ids.append(self._id)
        self._ids = list(connection.savepoint_ids)
        self._blocks = list(connection.atomic_blocks)

    def release(self) -> None:
        """Keep what was written.

        Raises:
            TransactionBroken: the transaction is lost.
            TransactionManagementError: the code has marked the block for rollback; roll back.
            Error: the database refuses what was written, for example because of a constraint; roll back.
        """
        self._check()
        if self._connection.needs_rollback:
            raise TransactionManagementError(
                "the transaction is marked for rollback: a database error was caught within atomic(), or "
                "set_rollback(True) was called. Catch database errors outside of the atomic block that they end."
            )
        get_store(self._connection).check_constraints()
        self._connection.savepoint_commit(self._id)
        self._connection.savepoint_ids.pop()

    def roll_back(self) -> None:
        """Undo what was written.

        Raises:
            TransactionBroken: the transaction is lost.
        """
        self._check()
        self._connection.needs_rollback = False
        try:
            self._connection.savepoint_rollback(self._id)
            self._connection.savepoint_commit(self._id)
        except Error as error:
            self._connection.needs_rollback = True
            raise TransactionBroken("the savepoint does not exist any more") from error
        finally:
            self._connection.savepoint_ids.pop()

    def _check(self) -> None:
        """Compare the connection's records with those at the beginning; if they differ, restore them."""
        connection = self._connection
        if connection.closed_in_transaction:
            reason = "the connection was closed"
        elif not connection.in_atomic_block or connection.get_autocommit():
            reason = "the transaction was ended"
        elif connection.savepoint_ids != self._ids or connection.atomic_blocks != self._blocks:
            reason = "an atomic block was interrupted, or entered and not left"
        else:
            return
        connection.in_atomic_block = True
        connection.savepoint_ids = self._ids[:-1]
        connection.atomic_blocks = self._blocks
        connection.needs_rollback = True
        raise TransactionBroken(reason)
