"""The background tasks of a session with NATS."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Keeps references to tasks, without which asyncio may drop them, and reports those that fail.

    Args:
        on_failure: called with the error of a task that failed.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """Cancel all tasks that run."""
        for task in self._running:
            task.cancel()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)
