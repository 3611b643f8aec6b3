"""A thread with an event loop."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_TIMEOUT = 15.0
"""Seconds that a connection has to end. What it waits for has time limits, except the resolver of host names."""


class LoopThread:
    """Runs a coroutine in a new thread, with its own event loop, until it ends. Thread-safe.

    Args:
        main: makes the coroutine.
        name: the name of the thread.
    """

    def __init__(self, main: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._main = main
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, work: Callable[[], None]) -> bool:
        """Call a function in the thread, without waiting for it; False if the coroutine has ended."""
        with self._lock:
            if not self._has_ended:
                self._loop.call_soon_threadsafe(work)
            return not self._has_ended

    def ask(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Run a coroutine in the thread and return its result; None if the thread ends first."""
        with self._lock:
            if self._has_ended:
                return None
            asked = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return asked.result()
        except CancelledError:
            return None

    def join(self) -> None:
        """Wait until the thread has ended, at most `JOIN_TIMEOUT`."""
        self._thread.join(JOIN_TIMEOUT)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._main())
        finally:
            with self._lock:
                self._has_ended = True
            # What other threads have asked for in the meantime is done first.
            self._loop.run_until_complete(_finish())
            self._loop.close()


async def _finish() -> None:
    """End all other tasks and threads of the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()
