"""The event loop of a connection that can stop reading from its socket for a while."""

from collections.abc import Callable
from typing import Any

from django_outbox.brokers.rabbitmq.loop import Loop


class ThrottledLoop(Loop):
    """Leaves data in the socket while it is paused, so that TCP slows the broker down.

    RabbitMQ bounds what it delivers ahead in messages only, and a thousand of them may be many gigabytes.
    """

    _is_paused = False
    _resumption: Any = None
    _wanted = 0

    def add_handler(self, fd: int, handler: Callable[[int, int], None], events: int) -> None:
        super().add_handler(fd, handler, events)
        self._wanted = events

    def update_handler(self, fd: int, events: int) -> None:
        if fd == self._fd:
            self._wanted = events
            if self._is_paused:
                events &= ~self.READ
        super().update_handler(fd, events)

    def pause_reading(self, max_seconds: float) -> None:
        """Read nothing from the socket until `resume_reading`, or for that long."""
        self._set_paused(True)
        # One timer at a time, or those of many pauses would together keep the socket open.
        if self._resumption is None:
            self._resumption = self.call_later(max_seconds, self.resume_reading)

    def resume_reading(self) -> None:
        """Read from the socket again."""
        if self._resumption is not None:
            self.remove_timeout(self._resumption)
            self._resumption = None
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if paused != self._is_paused:
            self._is_paused = paused
            if self._fd is not None:
                self.update_handler(self._fd, self._wanted)
