"""Publishers whose outcomes a test decides."""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django.db import connections

from django_outbox.brokers import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome, retry_later

SCRIPTED = {"BACKEND": "tests.support.publishers.ScriptedPublisher"}
"""An entry of `PUBLISHERS`."""


class ScriptedPublisher(Publisher):
    """Returns the outcome of `ScriptedPublisher.answer` for each message, and keeps the batches."""

    answer: ClassVar[Callable[[Message], Outcome]] = lambda message: ACCEPTED
    batches: ClassVar[list[list[Message]]] = []
    closed: ClassVar[int] = 0
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, alias: str, *, colour: str = "grey") -> None:
        super().__init__(alias)
        self.colour = colour

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        cls = type(self)
        with cls._lock:
            cls.batches.append(list(messages))
        return [cls.answer(message) for message in messages]

    def close(self) -> None:
        with self._lock:
            type(self).closed += 1

    @classmethod
    def reset(cls) -> None:
        cls.answer = staticmethod(lambda message: ACCEPTED)
        cls.batches = []
        cls.closed = 0

    @classmethod
    def published(cls) -> list[Any]:
        """The ids of all published messages, in order."""
        return [message.id for batch in cls.batches for message in batch]


class LockingPublisher(Publisher):
    """Accepts messages, and keeps a database of SQLite locked as another program would that writes for a long time."""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        self._session = sqlite3.connect(connections["default"].settings_dict["NAME"], isolation_level=None)
        self._session.execute("BEGIN IMMEDIATE")
        return [ACCEPTED] * len(messages)


class RefusingPublisher(Publisher):
    """Defers every message."""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [retry_later("the queue is full")] * len(messages)
