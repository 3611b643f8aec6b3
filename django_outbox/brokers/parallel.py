"""Requests that are sent in parallel, for brokers with a blocking client. They end in time, whatever hangs."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any, TypeVar

from django_outbox.utils.threads import Threads

R = TypeVar("R")


class Slots:
    """The requests that may be in flight together. Threads that wait for a slot get it in their order.

    `threading.Semaphore` would give it to the thread that has just released it, so that the requests of another call
    might not begin in time.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._waiting: deque[Lock] = deque()
        self._lock = Lock()

    def acquire(self, timeout: float) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            turn = Lock()
            turn.acquire()
            self._waiting.append(turn)
        if turn.acquire(timeout=timeout):
            return True
        with self._lock:
            if turn not in self._waiting:
                # It was given the slot just now.
                return True
            self._waiting.remove(turn)
            return False

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class ParallelRequests:
    """The requests of one call of `publish`.

    Threads are started for each call, which takes a tenth of a millisecond and leaves no thread for a fork or `close`
    to end.

    Args:
        begin_until: when the last request must have begun, by the monotonic clock.
    """

    def __init__(self, name: str, begin_until: float) -> None:
        self._name = name
        self._begin_until = begin_until
        self._threads = Threads()
        self._queues: list[deque[Any]] = []

    def send(self, requests: Iterable[R], send: Callable[[R], object], slots: Slots, *, concurrency: int) -> None:
        """Begin to send requests to one server, without waiting for the end.

        `slots` limits its requests in flight of all calls together, and `concurrency` of this call.
        """
        waiting = deque(requests)
        self._queues.append(waiting)

        def work() -> None:
            while waiting and (seconds := self._begin_until - time.monotonic()) > 0:
                if not slots.acquire(timeout=seconds):
                    break
                try:
                    try:
                        request = waiting.popleft()
                    except IndexError:
                        break
                    send(request)
                finally:
                    slots.release()

        try:
            for _ in range(min(concurrency, len(waiting))):
                self._threads.start(work, name=self._name)
        except BaseException:
            self._end()
            raise

    def wait(self, seconds: float) -> None:
        """Wait for all requests until the deadline, and re-raise the first error of `send`.

        A thread that still hangs is abandoned, because name resolution has no timeout.
        """
        try:
            self._threads.wait(seconds)
        finally:
            self._end()
        if self._threads.errors:
            raise self._threads.errors[0]

    def _end(self) -> None:
        """Begin no further request, also after Ctrl-C. Requests in flight end."""
        for waiting in self._queues:
            waiting.clear()
