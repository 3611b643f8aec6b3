"""Requests that are sent in parallel, for brokers with a blocking client. They end in time, whatever hangs."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

from django_outbox.utils.threads import Threads

R = TypeVar("R")


def send_in_parallel(
    requests: Iterable[R],
    send: Callable[[R], object],
    *,
    thread_name: str,
    concurrency: int,
    begin_seconds: float,
    wait_seconds: float,
) -> None:
    """Send requests in threads, wait for all of them, and re-raise the first error of `send`.

    Threads are started for each call, which takes a tenth of a millisecond and leaves no thread for a fork or `close`
    to end. No request begins after `begin_seconds`. A thread that still hangs after `wait_seconds` is abandoned,
    because name resolution has no timeout.
    """
    begin_until = time.monotonic() + begin_seconds
    waiting = deque(requests)
    threads = Threads()

    def work() -> None:
        while time.monotonic() < begin_until:
            try:
                request = waiting.popleft()
            except IndexError:
                break
            send(request)

    try:
        for _ in range(min(concurrency, len(waiting))):
            threads.start(work, name=thread_name)
        threads.wait(wait_seconds)
    finally:
        # No further request begins, also after Ctrl-C.
        waiting.clear()
    if threads.errors:
        raise threads.errors[0]
