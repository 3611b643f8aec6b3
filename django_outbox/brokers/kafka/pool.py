"""The producers of one publisher: each call of `publish` has one for itself."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django_outbox.brokers.kafka.client import Client


class Pool:
    """Keeps the producers that no thread uses.

    A producer with messages of one call only can be ended when that call fails, and reports to that call only. There
    are never more of them than threads that publish at once.

    Args:
        make_client: makes another one.
    """

    def __init__(self, make_client: Callable[[], Client]) -> None:
        self._make_client = make_client
        self.start_over()

    def start_over(self) -> None:
        """Forget all producers, without ending them."""
        self._lock = threading.Lock()
        self._idle: list[Client] = []
        self._used: set[Client] = set()
        self._generation = object()

    def abandon(self) -> None:
        """Forget all producers in a forked process: their threads belong to the parent."""
        for client in (*self._idle, *self._used):
            client.abandon()
        self.start_over()

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Lend a producer. A broken one is not lent again."""
        with self._lock:
            client = self._idle.pop() if self._idle else self._make_client()
            self._used.add(client)
            generation = self._generation
        try:
            yield client
        except BaseException:
            client.discard()
            raise
        finally:
            with self._lock:
                self._used.discard(client)
                if not client.health.is_broken and generation is self._generation:
                    self._idle.append(client)

    def close(self) -> None:
        """End the producers that are not in use, and the others when they are given back."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation = object()
        # The last reference ends them.
        del idle
