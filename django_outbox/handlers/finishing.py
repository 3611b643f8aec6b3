"""Run what a call has left to be run: await a coroutine, refuse a generator."""

import inspect
from collections.abc import Awaitable
from typing import Any

from asgiref.sync import async_to_sync

from django_outbox.handlers.time_limits import wait_within


class NotRun(TypeError):
    """A call returned a generator, so none of its code has run."""


def finish(returned: Any, seconds: float | None = None, passed: float = 0.0) -> Any:
    """Return the result of a call, and await it first if it is awaitable.

    asgiref awaits in another thread, and runs what is called there with `sync_to_async`, such as Django's ORM, in this
    one: on the same connection, and so in the same transaction.

    Args:
        returned: what the call has returned.
        seconds: the time limit of the call; None for no limit.
        passed: seconds of it that have passed.

    Raises:
        NotRun: it is a generator.
        HandlerTimeout: the time was over.
    """
    if inspect.isawaitable(returned):
        waiting = _wait(returned)
        returned = async_to_sync(_run)(waiting if seconds is None else wait_within(seconds, waiting, passed))
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise NotRun("returned a generator, which nothing runs")
    return returned


async def _run(waiting: Awaitable[Any]) -> Any:
    return await waiting


async def _wait(returned: Any) -> Any:
    # A coroutine may return another one, because an `await` is missing in it.
    while inspect.isawaitable(returned):
        returned = await returned
    return returned
