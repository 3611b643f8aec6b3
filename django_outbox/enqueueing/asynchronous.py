"""`atomic_async`: enqueue from async code.

Django has no async transactions, so the work is done in a thread, as Django's own async methods do it.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db import router, transaction

from django_outbox.models import OutboxMessage

P = ParamSpec("P")
R = TypeVar("R")

_NOT_RUN = (inspect.iscoroutine, inspect.isgenerator, inspect.isasyncgen)
"""Find what a function has returned without running its code."""


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
