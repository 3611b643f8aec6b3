"""Call a function in this thread: within a time limit, and until what it returns has run."""

import asyncio
import ctypes
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import async_to_sync

from django_outbox.exceptions import HandlerTimeout

GRACE = 0.1
"""Seconds that the database gets to cancel a statement first, because that leaves the connection in order."""

MAX_INTERRUPTIONS = 3
"""Python ignores an exception that arrives in a finalizer, so there is a second one, and a third."""

INTERRUPTION_INTERVAL = 1.0
"""Seconds between two interruptions."""

LOCK_PATIENCE = 1.0
"""Seconds to wait for a lock that an interruption may have left locked."""


class NotRun(TypeError):
    """A call returned a generator, so none of its code has run."""


def finish(returned: Any, seconds: float | None = None, passed: float = 0.0) -> Any:
    """Return the result of a call, and await it first if it is awaitable.

    asgiref awaits in another thread, and runs what is called there with `sync_to_async`, such as Django's ORM, in this
    one: on the same connection, and so in the same transaction.

    Args:
        seconds: the time limit of the call; None for no limit.

    Raises:
        NotRun: the value is a generator.
        HandlerTimeout: the time was over.
    """
    if inspect.isawaitable(returned):
        returned = async_to_sync(_wait_within)(seconds, returned, passed)
    if inspect.isgenerator(returned) or inspect.isasyncgen(returned):
        raise NotRun("returned a generator, which nothing runs")
    return returned


async def _wait_within(seconds: float | None, returned: Awaitable[Any], passed: float) -> Any:
    began = time.monotonic() - passed
    try:
        return await asyncio.wait_for(_wait(returned), None if seconds is None else seconds - passed)
    except asyncio.TimeoutError:
        if seconds is None or time.monotonic() - began < seconds:
            # The handler itself has raised it.
            raise
        raise _too_slow(seconds) from None


async def _wait(returned: Any) -> Any:
    # A coroutine may return another one, because an `await` is missing in it.
    while inspect.isawaitable(returned):
        returned = await returned
    return returned


class _Interrupted(BaseException):
    """Raised in the thread of a call that takes too long; `except Exception` does not catch it."""


def call_within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function; after a number of seconds, raise HandlerTimeout in it.

    Python raises it between two instructions of the interpreter. A call into the operating system or a C library that
    blocks, such as `time.sleep` or the wait for an answer from a socket, must return first.
    """
    watch = _Watch(seconds + GRACE)
    try:
        try:
            watch.start()
            return function()
        finally:
            watch.stop()
    except _Interrupted:
        # It may have arrived in `stop`.
        watch.stop()
        raise _too_slow(seconds) from None


def _too_slow(seconds: float) -> HandlerTimeout:
    return HandlerTimeout(f"the handler took longer than its time limit of {seconds:g} s")


class _Watch:
    """Interrupts the thread that made it, until it is stopped.

    The interruption may arrive anywhere in `stop`, even between taking a lock and entering its `with` block. So locks
    are used without one, and never waited for without a limit.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._thread = threading.get_ident()
        self._running = threading.Lock()
        self._firing = threading.Lock()
        self._stopped = False
        self._fired = False

    def start(self) -> None:
        self._running.acquire()
        threading.Thread(target=self._watch, name="outbox-time-limit", daemon=True).start()

    def stop(self) -> None:
        """Interrupt nothing from now on, and withdraw an interruption that has not arrived."""
        held = self._firing.acquire(timeout=LOCK_PATIENCE)
        if not self._stopped:
            self._stopped = True
            self._running.release()
        if held:
            self._firing.release()
        if self._fired:
            _raise_in(self._thread, None)

    def _watch(self) -> None:
        seconds = self._seconds
        for _ in range(MAX_INTERRUPTIONS):
            if self._running.acquire(timeout=max(seconds, 0.0)) or not self._firing.acquire(timeout=LOCK_PATIENCE):
                return
            if not self._stopped:
                self._fired = True
                _raise_in(self._thread, _Interrupted)
            self._firing.release()
            seconds = INTERRUPTION_INTERVAL


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
