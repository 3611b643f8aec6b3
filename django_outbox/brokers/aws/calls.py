"""Call AWS in threads, for a bounded time."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from threading import Semaphore
from typing import TypeVar

from django_outbox.brokers.aws.batches import Request
from django_outbox.threads import Threads

T = TypeVar("T")

THREAD_NAME = "outbox-aws"


class RequestRunner:
    """Sends the requests of one call of `publish`, several at a time.

    Threads are started for each call: that takes a tenth of a millisecond, and leaves none behind that a fork or
    `close` would have to know of.

    Args:
        requests: the requests, in the order in which to send them.
        send: sends one of them.
        slots: limits the requests in flight of all calls together.
        timeout: seconds after which no further request begins; a request may take as long, too.

    Attributes:
        errors: exceptions that `send` raised.
    """

    def __init__(
        self, requests: Iterable[Request], send: Callable[[Request], None], slots: Semaphore, timeout: float
    ) -> None:
        self._left = deque(requests)
        self._send = send
        self._slots = slots
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._threads = Threads()

    @property
    def errors(self) -> list[BaseException]:
        """Exceptions that `send` raised."""
        return self._threads.errors

    def run(self, concurrency: int) -> None:
        """Send the requests, until the last one has returned or the time is over."""
        try:
            for number in range(min(concurrency, len(self._left))):
                self._threads.start(self._work, name=f"{THREAD_NAME}-{number}")
            # Name resolution and the source of the credentials have no timeout, so a thread may hang: it is left alone.
            self._threads.wait(2 * self._timeout)
        finally:
            # After Ctrl-C, too, no further request begins.
            self._left.clear()

    def _work(self) -> None:
        while self._left and (seconds := self._deadline - time.monotonic()) > 0:
            if not self._slots.acquire(timeout=seconds):
                break
            try:
                try:
                    request = self._left.popleft()
                except IndexError:
                    break
                self._send(request)
            finally:
                self._slots.release()


def call_within(seconds: float, work: Callable[[], T]) -> T:
    """Call a function in a thread, and return what it returns.

    Raises:
        TimeoutError: it took longer.
    """
    threads = Threads()
    results: list[T] = []
    threads.start(lambda: results.append(work()), name=THREAD_NAME)
    if not threads.wait(seconds):
        raise TimeoutError(f"no response within {seconds:g} s")
    if threads.errors:
        raise threads.errors[0]
    return results[0]
