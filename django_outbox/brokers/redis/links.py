"""The connections to one server, each of which carries one batch at a time."""

import threading
from collections.abc import Callable

from django_outbox.brokers.redis.link import Link


class Links:
    """Idle connections, to be used again by any thread.

    Args:
        connect: opens a connection.
    """

    def __init__(self, connect: Callable[[], Link]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._idle: list[Link] = []

    def take(self) -> Link:
        """Return a connection that nobody else uses.

        Raises:
            Lost: the server cannot be reached.
        """
        while True:
            with self._lock:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self._connect()
            if link.is_alive:
                return link
            link.close()

    def put(self, link: Link) -> None:
        """Take back a connection to which the server owes no reply."""
        with self._lock:
            self._idle.append(link)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()
