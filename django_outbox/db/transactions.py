"""Transactions, as Django's connections keep them: whether one is open, and a savepoint that notices if it is broken.

`enqueue` needs an open transaction, and the relay must not be inside one. Without one, a lost connection can be opened
again.
"""

import asyncio
import os
import selectors
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from django.core.exceptions import SynchronousOnlyOperation
from django.db import Error, InterfaceError, OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_outbox.exceptions import TransactionForbidden, TransactionRequired

Result = TypeVar("Result")


def in_transaction(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the caller has opened a transaction on this connection.

    The blocks that `TestCase` wraps around each test do not count, because they would hide a forgotten transaction.
    With autocommit off, a transaction is always open.
    """
    if connection.in_atomic_block:
        return any(not getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def is_private(connection: BaseDatabaseWrapper) -> bool:
    """Return whether no other thread sees what this one writes: in a test's own transaction, or in SQLite's memory."""
    in_memory = getattr(connection, "is_in_memory_db", lambda: False)
    return connection.in_atomic_block or in_memory()


def waits_for_commit(connection: BaseDatabaseWrapper, hook: Callable[[], object]) -> bool:
    """Return whether a function that was given to `on_commit` is still to be called.

    It is not if it was called, or if the writes before it were rolled back, even to a savepoint only.
    """
    # Django keeps its hooks there, in every supported version; rollbacks remove theirs.
    return any(each[1] is hook for each in reversed(connection.run_on_commit))


def hint_elsewhere() -> str:
    """Return a hint that begins with a space if the caller has a transaction open on any database; empty if not."""
    other = find_transaction()
    return f" A transaction is open on {other!r}: did you mean using={other!r}?" if other else ""


def find_transaction() -> str:
    """Return the alias of a database on which the caller has opened a transaction; empty if there is none.

    A database with `AUTOCOMMIT` off in `DATABASES` does not count, because every session there is in a transaction.
    """
    for other in connections.all(initialized_only=True):
        if in_transaction(other) and (other.in_atomic_block or other.settings_dict["AUTOCOMMIT"]):
            return other.alias
    return ""


def reconnect_if_lost(connection: BaseDatabaseWrapper) -> None:
    """Close a connection on which a statement has failed and that does not work any more; Django opens it again.

    Django does so when a request begins, and Celery around each task. Other processes, such as beat, would use the lost
    connection forever. Inside an atomic block nothing is done.
    """
    if connection.errors_occurred:
        connection.close_if_unusable_or_obsolete()


def check_task_transaction(task: str, *, using: str, instead: str, remedy: str, may_be_elsewhere: bool = False) -> bool:
    """Return whether the caller of a task has a transaction open on the database that stores its calls.

    Without one, a call is stored in its own transaction, so the caller may not believe that it is part of another.

    Args:
        instead: what to write in async code.
        remedy: how to store the call in another database, which is inserted.
        may_be_elsewhere: whether the caller has chosen the database for this call.

    Raises:
        SynchronousOnlyOperation: it was called in async code.
        TransactionRequired: a transaction is open on another database only.
    """
    connection = connections[using]
    if in_transaction(connection):
        return True
    if in_async_code():
        raise SynchronousOnlyOperation(
            f"The task {task!r} was called in async code, where Django has no transactions. Write `{instead}`, or call "
            f"it in a function with @transaction.atomic(using={using!r}), and await `sync_to_async(function)(...)`."
        )
    if not may_be_elsewhere and (other := find_transaction()):
        raise TransactionRequired(
            f"The task {task!r} was called in a transaction on {other!r}, but its calls are stored in {using!r}, where "
            f"a rollback would not undo this one. {remedy.format(other)}, or call it after the transaction, for "
            "example in an on_commit hook."
        )
    reconnect_if_lost(connection)
    return False


def is_usable(connection: BaseDatabaseWrapper) -> bool:
    """Return whether the server answers over a connection; False if it was closed."""
    # Django's own method raises an AttributeError on MySQL if there is no connection.
    return connection.connection is not None and connection.is_usable()


def is_silent(connection: BaseDatabaseWrapper) -> bool:
    """Return whether nothing has arrived over an idle network connection, not even its end; this asks no server."""
    # SQLite's has no descriptor, and neither has a connection that was lost.
    with suppress(Exception), selectors.DefaultSelector() as selector:
        selector.register(connection.connection.fileno(), selectors.EVENT_READ)
        return not selector.select(0)
    return False


def outlive_connection(connection: BaseDatabaseWrapper, query: Callable[[bool], Result]) -> Result:
    """Call a function that runs its own transaction, and once more if that shows that the connection was lost.

    Args:
        query: the function. Its argument is whether it is called again: the first call may have been committed.
    """
    connection.ensure_connection()
    session = connection.connection
    try:
        return query(False)
    except (InterfaceError, OperationalError):
        # Leaving an atomic block, Django may have opened another one already.
        if connection.in_atomic_block or (connection.connection is session and is_usable(connection)):
            raise
        if connection.connection is session:
            connection.close()
        return query(True)


def refuse_transaction(
    connection: BaseDatabaseWrapper,
    function: str,
    lost: str = "the record of published messages, and they would be published again",
) -> None:
    """Raise TransactionForbidden, with the remedy, if the caller of this function has a transaction open.

    Args:
        lost: what a rollback would lose.
    """
    if not in_transaction(connection):
        return
    if connection.in_atomic_block:
        remedy = "Call it after the transaction, for example in a function given to transaction.on_commit()."
    else:
        remedy = "Autocommit is off there: switch it on with transaction.set_autocommit(True), or in DATABASES."
    raise TransactionForbidden(
        f"{function} was called inside an open transaction on the database {connection.alias!r}: a rollback would "
        f"lose {lost}. {remedy}"
    )


def in_async_code() -> bool:
    """Return whether this code runs in an event loop, where Django allows no queries."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")


def refuse_async(function: str, using: str) -> None:
    """Raise SynchronousOnlyOperation, with the remedy, if this code runs in an event loop and has no transaction."""
    if in_async_code():
        raise SynchronousOnlyOperation(
            f"{function}() was called in async code, where Django has no transactions. Write a function with "
            f"@transaction.atomic(using={using!r}) that changes your data and calls {function}(), and await "
            "`sync_to_async(function)(...)` of asgiref: it runs in a thread."
        )


class TransactionBroken(Exception):
    """The savepoint is lost, so the whole transaction must be rolled back."""


class Savepoint:
    """A savepoint in an open transaction, which notices if the code inside it has broken the transaction.

    `transaction.atomic` trusts the connection's records of its blocks. Code that was interrupted within a block, or has
    entered one and not left it, has falsified them: a rollback would end at the wrong savepoint and keep a part of what
    was written.

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

    def release(self, check_constraints: Callable[[], object]) -> None:
        """Keep what was written.

        Args:
            check_constraints: called before that, and raises an Error to refuse it.

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
        check_constraints()
        self._connection.savepoint_commit(self._id)
        self._connection.savepoint_ids.pop()

    def roll_back(self) -> None:
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
