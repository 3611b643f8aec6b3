"""A time limit for a call in the current thread."""

import asyncio
import ctypes
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from django_outbox.exceptions import HandlerTimeout


class _Interrupted(BaseException):
    """Raised in the thread of a call whose time is over; `except Exception` does not catch it."""


def call_within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function; after a number of seconds, raise HandlerTimeout where it is.

    Python raises it between two instructions of the interpreter. A call into the operating system or a C library that
    blocks, such as `time.sleep` or the wait for an answer from a socket, must return first.

    Args:
        seconds: the time limit.
        function: the function, without arguments.

    Raises:
        HandlerTimeout: the time was over.
    """
    watch = _Watch(seconds)
    try:
        try:
            watch.start()
            return function()
        finally:
            watch.stop()
    except _Interrupted:
        raise _too_slow(seconds) from None


async def wait_within(seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine; after a number of seconds, cancel it.

    Raises:
        HandlerTimeout: the time was over.
    """
    try:
        return await asyncio.wait_for(_shielded_timeout(coroutine), seconds)
    except asyncio.TimeoutError:
        raise _too_slow(seconds) from None
    except _OwnTimeout as error:
        raise error.args[0] from None


class _OwnTimeout(Exception):
    """Carries a TimeoutError that the handler itself raised."""


async def _shielded_timeout(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await coroutine
    except asyncio.TimeoutError as error:
        raise _OwnTimeout(error) from None


def _too_slow(seconds: float) -> HandlerTimeout:
    return HandlerTimeout(f"the handler took longer than its time limit of {seconds:g} s")


class _Watch:
    """Interrupts the thread that made it, once, unless it is stopped before."""

    def __init__(self, seconds: float) -> None:
        self._thread = threading.get_ident()
        self._timer = threading.Timer(seconds, self._interrupt)
        self._timer.daemon = True
        self._lock = threading.Lock()
        self._stopped = False
        self._fired = False

    def start(self) -> None:
        self._timer.start()

    def stop(self) -> None:
        """Interrupt nothing from now on; an interruption that was sent, but has not arrived, is withdrawn."""
        self._timer.cancel()
        with self._lock:
            self._stopped = True
        if self._fired:
            _raise_in(self._thread, None)

    def _interrupt(self) -> None:
        with self._lock:
            if not self._stopped:
                self._fired = True
                _raise_in(self._thread, _Interrupted)


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
