"""Messages with SOURCE "log" are delivered as PostgreSQL's log brings them."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from django.db import connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox.conf import get_settings
from django_outbox.relay.batch import PublishedBatches
from django_outbox.relay.sources import LogSource
from tests.streams.conftest import LOG
from tests.support.databases import statements
from tests.support.messages import put
from tests.support.publishers import SCRIPTED, Script, ScriptedPublisher
from tests.support.waiting import eventually

pytestmark = pytest.mark.usefixtures("scripted", "log")

OUTBOX: dict[str, Any] = {"PUBLISHERS": {"default": {**SCRIPTED, "SOURCE": "log"}}}


@pytest.fixture(autouse=True)
def from_log() -> Iterator[None]:
    with override_settings(OUTBOX=OUTBOX):
        yield


class Worker:
    """A worker that delivers when the test says so."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.source = LogSource(LOG, "default", get_settings(), wake=self.wake)
        self.batches = PublishedBatches(
            publisher=ScriptedPublisher("default"), source=self.source, settings=get_settings()
        )

    def wake(self, names: Iterable[str]) -> None:
        self.woken.set()

    def deliver(self, limit: int = 100) -> int:
        return self.batches.run(limit).processed

    def lists(self) -> bool:
        """Deliver, and return whether the database was searched for streamed messages."""
        with CaptureQueriesContext(connections[LOG]) as queries:
            self.deliver()
        return any("xid >=" in query["sql"] for query in queries.captured_queries)

    def follow(self) -> None:
        """Deliver until messages come from the log only."""

        eventually(lambda: self.deliver() == 0 and self.source.follows)

    def receive(self) -> None:
        """Wait until the log has brought something."""
        assert self.woken.wait(5)
        self.woken.clear()


@pytest.fixture
def new_worker() -> Iterator[Callable[[], Worker]]:
    workers: list[Worker] = []

    def make() -> Worker:
        workers.append(Worker())
        return workers[-1]

    yield make
    for worker in workers:
        worker.source.close()


@pytest.fixture
def worker(new_worker: Callable[[], Worker]) -> Worker:
    return new_worker()


def test_messages_come_from_the_log_without_a_search(worker: Worker, scripted: Script):
    put(1, LOG)
    worker.follow()
    worker.woken.clear()
    ids = put(3, LOG, keys=2)
    worker.receive()
    with CaptureQueriesContext(connections[LOG]) as queries:
        assert worker.deliver() == 3
    assert scripted.published()[1:] == ids
    assert statements(queries) == ["SET", "SELECT", "SELECT", "SELECT", "UPDATE"]
    assert worker.deliver() == 0
