"""The requests of one call of `publish`, and what came of them so far."""

import threading
import time
from collections.abc import Iterable

from django_outbox.brokers.http.errors import Failure
from django_outbox.brokers.http.responses import Response
from django_outbox.messages import Outcome

Result = Response | Failure | Outcome | None
"""What came of a request: an outcome if HTTP could not carry it, None if it was not sent."""


class Batch:
    """Collects the results of requests, in the order of the batch. Thread-safe.

    Args:
        size: the number of messages.
        seconds: how long requests may be begun.
    """

    def __init__(self, size: int, seconds: float) -> None:
        self.results: list[Result] = [None] * size
        self._begin_until = time.monotonic() + seconds
        self._open: set[int] = set()
        self._lock = threading.Lock()
        self._done = threading.Event()

    @property
    def is_late(self) -> bool:
        """Whether no further request is to begin."""
        return time.monotonic() > self._begin_until

    def expect(self, indexes: Iterable[int]) -> None:
        """Expect the results of these messages; call it before their requests are handed over."""
        self._done.clear()
        self._open |= set(indexes)

    def finish(self, index: int, result: Result) -> None:
        """Set a result, unless the caller does not wait for it any more."""
        with self._lock:
            if index in self._open:
                self.results[index] = result
                self._open.discard(index)
                if not self._open:
                    self._done.set()

    def wait(self, seconds: float) -> None:
        """Wait for all expected results. Those that are missing then are failures, and are ignored when they come."""
        if self._open and not self._done.wait(seconds):
            with self._lock:
                for index in self._open:
                    self.results[index] = Failure("no response in time", "http.timeout", sent=True)
                self._open.clear()
