"""Publishers whose outcomes a test decides."""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar, TypeVar

from django.db import connections

from django_outbox.brokers import Consumer, Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome, retry_later

C = TypeVar("C", bound=Publisher | Consumer)

SCRIPTED = {"BACKEND": "tests.support.publishers.ScriptedPublisher"}
"""An entry of `PUBLISHERS`."""

PREPARING = {"BACKEND": "tests.support.publishers.PreparingPublisher"}


@contextmanager
def closing_all(make: Callable[..., C]) -> Iterator[Callable[..., C]]:
    """Yield a function that makes publishers or consumers, all of which are closed at the end."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(closing(make(*args, **options)))


class Script:
    """The outcomes of scripted publishers, and the batches that they got.

    The publishers that are constructed within its block belong to it, whatever the settings are.

    Attributes:
        answer: returns the outcome of a message.
        on_close: called with the alias of each publisher that is closed.
        unavailable: why a `PreparingPublisher` cannot connect; empty if it can.
        batches: the batches, in order.
        closed: the number of times that a publisher was closed.
    """

    current: "ClassVar[Script | None]" = None

    def __init__(self) -> None:
        self.answer: Callable[[Message], Outcome] = lambda message: ACCEPTED
        self.on_close: Callable[[str], object] = lambda alias: None
        self.unavailable = ""
        self.batches: list[list[Message]] = []
        self.closed = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Script":
        Script.current = self
        return self

    def __exit__(self, *_: object) -> None:
        Script.current = None

    def reset(self) -> None:
        """Accept everything, and forget the batches."""
        self.answer = lambda message: ACCEPTED
        self.batches = []

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        with self._lock:
            self.batches.append(list(messages))
        return [self.answer(message) for message in messages]

    def note_close(self) -> None:
        with self._lock:
            self.closed += 1

    def published(self) -> list[Any]:
        """The ids of all published messages, in order."""
        return [message.id for batch in self.batches for message in batch]


class ScriptedPublisher(Publisher):
    """Publishes to the current script, or accepts everything."""

    def __init__(self, alias: str, *, colour: str = "grey") -> None:
        super().__init__(alias)
        self.colour = colour
        self.script = Script.current or Script()

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return self.script.publish(messages)

    def close(self) -> None:
        self.script.note_close()
        self.script.on_close(self.alias)


class PreparingPublisher(ScriptedPublisher):
    """Connects before it publishes, unless its script has a reason why it cannot."""

    def prepare(self) -> str:
        return self.script.unavailable


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
