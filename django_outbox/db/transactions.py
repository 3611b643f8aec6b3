"""Checks for an open transaction: `enqueue` needs one, and the relay must not be inside one."""

import asyncio
import os

from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_outbox.exceptions import TransactionForbidden


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


def hint_elsewhere() -> str:
    """Return a hint that begins with a blank if the caller has a transaction open on any database; blank if not."""
    others = [other.alias for other in connections.all(initialized_only=True) if in_transaction(other)]
    return f" A transaction is open on {others[0]!r}: did you mean using={others[0]!r}?" if others else ""


def refuse_transaction(connection: BaseDatabaseWrapper, function: str) -> None:
    """Raise TransactionForbidden, with the remedy, if the caller of this function has a transaction open."""
    if not in_transaction(connection):
        return
    if connection.in_atomic_block:
        remedy = "Call it after the transaction, for example in a function given to transaction.on_commit()."
    else:
        remedy = "Autocommit is off there: switch it on with transaction.set_autocommit(True), or in DATABASES."
    raise TransactionForbidden(
        f"{function} was called inside an open transaction on the database {connection.alias!r}: a rollback would "
        f"lose the record of published messages, and they would be published again. {remedy}"
    )


def refuse_async(function: str, using: str) -> None:
    """Raise SynchronousOnlyOperation, with the remedy, if this code runs in an event loop and has no transaction.

    Args:
        function: the name of the function that was called.
        using: the database alias, for the remedy.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            f"{function}() was called in async code, where Django has no transactions. Write a function that changes "
            f"your data and calls {function}() inside `with transaction.atomic(using={using!r}):`, and call that "
            "function with `await sync_to_async(function)()`."
        )
