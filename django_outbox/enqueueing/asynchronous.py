"""`aenqueue`, `aenqueue_many` and `atomic_async`: enqueue from async code.

Django has no async transactions, so the work is done in a thread, as Django's own async methods do it.
"""

import datetime
import functools
import inspect
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db import router, transaction

from django_outbox.enqueueing.enqueue import enqueue, enqueue_many
from django_outbox.enqueueing.events import Event
from django_outbox.exceptions import TransactionRequired
from django_outbox.models import OutboxMessage

P = ParamSpec("P")
R = TypeVar("R")

_NOT_RUN = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)
"""Find what a function has returned without running its code."""


async def aenqueue(
    type: str | Event,
    payload: Any = ...,
    *,
    key: str | int | uuid.UUID = "",
    topic: str = "",
    headers: dict[str, Any] | None = None,
    message_id: uuid.UUID | str | None = None,
    delay: datetime.timedelta | float | None = None,
    available_at: datetime.datetime | None = None,
    publisher: str | None = None,
    using: str | None = None,
    require_transaction: bool | None = None,
    lock_key: bool | None = None,
) -> OutboxMessage:
    """Write a message from async code, in its own transaction, and return it.

    Async code has no transaction that the message could be part of, so this needs `require_transaction=False`, or
    `OUTBOX["REQUIRE_TRANSACTION"]` must be off. To save a message together with other data, use `atomic_async`.

    Takes the same arguments and raises the same other errors as `enqueue`.

    Raises:
        TransactionRequired: a transaction is required.
    """
    with _naming("aenqueue"):
        return await sync_to_async(enqueue)(
            type,
            payload,
            key=key,
            topic=topic,
            headers=headers,
            message_id=message_id,
            delay=delay,
            available_at=available_at,
            publisher=publisher,
            using=using,
            require_transaction=require_transaction,
            lock_key=lock_key,
        )


async def aenqueue_many(
    messages: Iterable[OutboxMessage | Event],
    *,
    using: str | None = None,
    require_transaction: bool | None = None,
    lock_key: bool | None = None,
) -> list[OutboxMessage]:
    """Write many messages from async code, in one transaction of their own; otherwise like `enqueue_many`.

    It needs `require_transaction=False`, as `aenqueue` does.

    Raises:
        TransactionRequired: a transaction is required.
    """
    with _naming("aenqueue_many"):
        return await sync_to_async(enqueue_many)(
            messages, using=using, require_transaction=require_transaction, lock_key=lock_key
        )


@overload
def atomic_async(function: Callable[P, R], /) -> Callable[P, Awaitable[R]]: ...
@overload
def atomic_async(*, using: str | None = None) -> Callable[[Callable[P, R]], Callable[P, Awaitable[R]]]: ...
def atomic_async(function: Callable[..., Any] | None = None, /, *, using: str | None = None) -> Any:
    """Make a synchronous function awaitable: it runs in a thread, in a transaction; a decorator.

    If the function raises an exception, its transaction is rolled back, and the exception is raised where the function
    is awaited. It cannot await anything itself.

    Args:
        using: the database alias, as in `enqueue`.

    Raises:
        TypeError: the function is an `async def`; when it is awaited, that it returned a coroutine or a generator.
    """
    if function is None:
        return functools.partial(atomic_async, using=using)
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"@atomic_async takes a synchronous function. Write `def {function.__name__}`, without async.")
    wrapped = function

    @functools.wraps(wrapped)
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await sync_to_async(run)(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        with transaction.atomic(using=using or router.db_for_write(OutboxMessage)):
            returned = wrapped(*args, **kwargs)
            if any(is_not_run(returned) for is_not_run in _NOT_RUN):
                raise TypeError(
                    f"The function {getattr(wrapped, '__name__', 'function')} with @atomic_async returned a "
                    f"{type(returned).__name__}, which nothing has run. Write it as a synchronous function, and its "
                    "decorators, too."
                )
            return returned

    return call


@contextmanager
def _naming(function: str) -> Iterator[None]:
    """Name the called function, and the remedy for async code, in an error."""
    try:
        yield
    except TransactionRequired:
        raise TransactionRequired(
            f"{function}() was called in async code, where Django has no transactions. To save the message together "
            f"with your data, call {function[1:]}() in a function with @atomic_async, and await that function; or pass "
            "require_transaction=False to save the message on its own."
        ) from None
