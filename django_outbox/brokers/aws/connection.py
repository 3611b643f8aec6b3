"""The client of boto3, and requests in threads that end in a bounded time."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import boto3

from django_outbox.brokers.aws.options import AWSOptions
from django_outbox.threads import Threads

R = TypeVar("R")
T = TypeVar("T")

THREAD_NAME = "outbox-aws"


class AWSClient:
    """Constructs a client of boto3 when it is first used, and again if the credentials are refused.

    Clients of boto3 are thread-safe, sessions are not:
    https://docs.aws.amazon.com/boto3/latest/guide/clients.html#multithreading-or-multiprocessing-with-clients
    """

    def __init__(self, service: str, options: AWSOptions) -> None:
        self._service = service
        self._options = options
        self._lock = threading.Lock()
        self._client: Any = None

    def get(self) -> Any:
        """Return the client. Constructing it reads files, and may ask for credentials, so it may take seconds."""
        client = self._client
        if client is None:
            with self._lock:
                client = self._client
                if client is None:
                    options = self._options
                    session = boto3.session.Session(region_name=options.region, **(options.session or {}))
                    client = self._client = session.client(
                        self._service, endpoint_url=options.endpoint_url, config=options.make_config()
                    )
        return client

    def drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def send_all(
    requests: Iterable[R],
    send: Callable[[R], None],
    slots: threading.Semaphore,
    *,
    concurrency: int,
    timeout: float,
) -> None:
    """Send requests in threads, until the last one has returned or the time is over.

    Threads are started for each call: that takes a tenth of a millisecond, and leaves no thread for a fork or `close`
    to end.

    `slots` limits the requests in flight of all calls together, and `concurrency` of this call. After `timeout`
    seconds no further request begins; each request may take as long, too.
    """
    left = deque(requests)
    deadline = time.monotonic() + timeout

    def work() -> None:
        while left and (seconds := deadline - time.monotonic()) > 0:
            if not slots.acquire(timeout=seconds):
                break
            try:
                try:
                    request = left.popleft()
                except IndexError:
                    break
                send(request)
            finally:
                slots.release()

    threads = Threads()
    try:
        for number in range(min(concurrency, len(left))):
            threads.start(work, name=f"{THREAD_NAME}-{number}")
        # Name resolution and the source of the credentials have no timeout, so a thread may hang: it is left alone.
        threads.wait(2 * timeout)
    finally:
        # After Ctrl-C, too, no further request begins.
        left.clear()
    if threads.errors:
        raise threads.errors[0]


def call_within(seconds: float, work: Callable[[], T]) -> T:
    """Call a function in a thread and return its result, or raise TimeoutError."""
    threads = Threads()
    results: list[T] = []
    threads.start(lambda: results.append(work()), name=THREAD_NAME)
    if not threads.wait(seconds):
        raise TimeoutError(f"no response within {seconds:g} s")
    if threads.errors:
        raise threads.errors[0]
    return results[0]
