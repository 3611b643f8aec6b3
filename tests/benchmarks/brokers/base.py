"""A broker as a benchmark needs it."""

import abc
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any, ClassVar, TypeVar

from django_outbox.messages import Message
from tests.benchmarks.measuring import DATABASE, BenchmarkError, Run, timed
from tests.benchmarks.messages import make_topics
from tests.benchmarks.workspace import require_url

BrokerT = TypeVar("BrokerT", bound="Broker")

VERSIONS: dict[str, str] = {}
"""The versions of the brokers that were used, by label."""

PATIENCE = 30.0
"""Seconds within which the destinations must count all messages that were confirmed."""


class Broker(abc.ABC):
    """Temporary destinations on a broker, one for each topic. Leaving the context deletes them.

    Attributes:
        label: the broker's name in reports.
        setting: the variable of the environment with its URL; blank if it needs none.
        process: the name of its processes; blank if it has none of its own.
        errors: exceptions of its client that mean that it cannot be reached.
    """

    label: str
    setting: ClassVar[str] = ""
    example: ClassVar[str] = ""
    process: str
    errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, destinations: int = 4) -> None:
        self.url = require_url(self.setting, self.example) if self.setting else ""
        self.topics = make_topics(destinations)
        self.name = f"outbox-benchmark-{os.getpid()}"

    def __enter__(self: BrokerT) -> BrokerT:
        try:
            VERSIONS[self.label] = self.create()
        except self.errors as error:
            raise BenchmarkError(f"The broker of {self.setting} does not answer: {error!r}") from error
        except BaseException:
            with suppress(Exception):
                self.delete()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.delete()

    @abc.abstractmethod
    def create(self) -> str:
        """Connect, create the destinations, and return the server's version."""

    @abc.abstractmethod
    def delete(self) -> None:
        """Delete the destinations over a new connection: a signal may have interrupted a call on the first one."""

    @abc.abstractmethod
    def publisher(self, **options: Any) -> dict[str, Any]:
        """Return the entry of `OUTBOX["PUBLISHERS"]`, with these additional options."""

    @abc.abstractmethod
    def purge(self) -> None:
        """Remove all messages."""

    @abc.abstractmethod
    def count(self) -> int:
        """Return the number of messages that arrived since the last purge."""

    @abc.abstractmethod
    def sender(self, messages: Sequence[Message]) -> AbstractContextManager[Callable[[], None]]:
        """Connect the client and prepare the messages in memory; the function sends them with the same guarantees.

        It returns when the broker has confirmed all of them.
        """

    def expect(self, count: int) -> None:
        """Raise a BenchmarkError unless this many messages arrived."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.count()) != count:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{count:,} messages were delivered, and {self.label} holds {found:,}.")
            time.sleep(0.01)

    def measure_limit(self, messages: Sequence[Message]) -> Run:
        """Send messages from memory by the client alone."""

        def work() -> int:
            send()
            return len(messages)

        self.purge()
        with self.sender(messages) as send:
            run = timed(work, self.process)
        self.expect(run.messages)
        # No database has taken part.
        figures = {name: each for name, each in run.figures.items() if name != DATABASE}
        return Run(run.messages, run.seconds, figures)
