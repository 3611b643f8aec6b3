"""The time limit of a call: a thread interrupts the one that takes too long."""

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from django_outbox.exceptions import HandlerTimeout

GRACE = 0.1
"""Seconds that the database gets to cancel a statement first, because that leaves the connection in order."""

MAX_INTERRUPTIONS = 3
"""Python ignores an exception that arrives in a finalizer, so there is a second one, and a third."""

INTERRUPTION_INTERVAL = 1.0
"""Seconds between two interruptions."""

LOCK_PATIENCE = 1.0
"""Seconds to wait for a lock that an interruption may have left locked."""


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
        if not watch.fired:
            # It is for a handler that has called this one.
            raise
        raise too_slow(seconds) from None


def too_slow(seconds: float) -> HandlerTimeout:
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
        self.fired = False

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
        if self.fired:
            _raise_in(self._thread, None)

    def _watch(self) -> None:
        seconds = self._seconds
        for _ in range(MAX_INTERRUPTIONS):
            if self._running.acquire(timeout=max(seconds, 0.0)) or not self._firing.acquire(timeout=LOCK_PATIENCE):
                return
            if not self._stopped:
                self.fired = True
                _raise_in(self._thread, _Interrupted)
            self._firing.release()
            seconds = INTERRUPTION_INTERVAL


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
