"""A connection with its own thread, for brokers that must be read regardless of what the callers do.

`PendingCall` has the messages that another thread sends, and `consumer.Intake` the messages that it reads.
"""

import abc
import threading
from typing import ClassVar

from django_outbox.brokers.consumer import Unavailable


class ConnectionThread(abc.ABC):
    """A connection that is not opened again after its end; construct another one.

    Underscore methods run on its thread; public methods are thread-safe. A subclass starts `_thread` at the end of its
    constructor.
    """

    kind: ClassVar[str]
    """`publisher` or `consumer`, for the log and for errors."""

    def __init__(self, alias: str, broker: str) -> None:
        self.error = ""
        self._owner = f"{self.kind.capitalize()} {alias!r}"
        self._is_ready_or_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"outbox-{broker}-{alias}", daemon=True)

    def wait_until_ready(self) -> str:
        """Wait until it can be used or has failed. Return the reason if it failed, and otherwise an empty string."""
        self._is_ready_or_ended.wait()
        return self.error

    def open(self) -> None:
        if reason := self.wait_until_ready():
            raise Unavailable(reason)

    @abc.abstractmethod
    def _run(self) -> None:
        """Open the connection, and read from it until its end."""

    def _end(self, error: str) -> None:
        """Note why the connection has ended, or is being closed. Only the first call counts."""
        if not self.error:
            self.error = error
            self._release(error)
            self._is_ready_or_ended.set()

    @abc.abstractmethod
    def _release(self, error: str) -> None:
        """Release the threads that wait for messages or outcomes."""
