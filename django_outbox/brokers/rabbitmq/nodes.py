"""The nodes of a RabbitMQ cluster, in the order in which to try them."""

import random
import threading
import time
from collections.abc import Callable, Sequence

import pika

AVOIDED_FOR = 300.0
"""Minimum seconds for which a node that failed is tried last; at most twice that, so that relays return one by one."""


class Nodes:
    """Remembers which nodes failed. Each publisher prefers a random node, so that relays spread over the cluster.

    Args:
        hosts: the connection parameters, one per node.
        clock: returns the time in seconds.
    """

    def __init__(self, hosts: Sequence[pika.URLParameters], clock: Callable[[], float] = time.monotonic) -> None:
        first = random.randrange(len(hosts))  # noqa: S311 (for load, not for security)
        self._hosts = [*hosts[first:], *hosts[:first]]
        self._avoided: dict[int, float] = {}
        self._clock = clock
        self._lock = threading.Lock()

    def order(self) -> list[pika.URLParameters]:
        """Return all nodes: the preferred one first, those that failed recently last."""
        now = self._clock()
        with self._lock:
            return sorted(self._hosts, key=lambda host: max(self._avoided.get(id(host), 0.0) - now, 0.0))

    def note_failure(self, host: pika.URLParameters) -> None:
        """Try this node last for 5 to 10 minutes."""
        with self._lock:
            seconds = AVOIDED_FOR * (1 + random.random())  # noqa: S311
            self._avoided[id(host)] = self._clock() + seconds

    def prefers_another(self, host: pika.URLParameters) -> bool:
        """Return whether a connection opened now would go to another node than this one."""
        return self.order()[0] is not host
