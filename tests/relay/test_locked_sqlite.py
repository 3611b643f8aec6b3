"""SQLite: a batch whose lease lasts is settled, however long another program keeps the database locked meanwhile."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.models import KeyLock, OutboxMessage, Status
from django_outbox.relay import Relay
from tests.support.databases import another_alias
from tests.support.effects import states
from tests.support.messages import claim, put, rows
from tests.support.publishers import SCRIPTED, Script
from tests.support.relay_threads import QUICK, STOP_PATIENCE
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("scripted"),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

TIMEOUT = 0.2
"""Seconds that a connection waits for a lock."""

# Between two batches, the relay's own report may keep the database locked for longer.
PATIENT = replace(QUICK, drain_patience=1000)

WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""


@pytest.fixture(autouse=True)
def publishers(settings: Any, monkeypatch: pytest.MonkeyPatch, scripted: Script) -> None:
    settings.OUTBOX = {"PUBLISHERS": {"default": SCRIPTED, "other": SCRIPTED}}
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "timeout", TIMEOUT)


class Writer:
    """Another program that writes for a long time."""

    def __init__(self) -> None:
        name = connections["default"].settings_dict["NAME"]
        command = [sys.executable, "-c", WRITER, str(name)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "locked\n"

    def commit(self) -> None:
        self._process.communicate("\n", timeout=STOP_PATIENCE)


@pytest.fixture
def writers() -> Iterator[list[Writer]]:
    """The programs that keep the database locked; none of them does so at the end."""
    started: list[Writer] = []
    yield started
    for writer in started:
        writer.commit()


@contextmanager
def committed_when_logged(caplog: pytest.LogCaptureFixture, writers: list[Writer]) -> Iterator[None]:
    """End the other program's transaction as soon as the relay has tried to settle in vain."""

    def commit() -> None:
        eventually(lambda: "cannot be settled yet" in caplog.text)
        writers.pop().commit()

    thread = threading.Thread(target=commit)
    thread.start()
    try:
        yield
    finally:
        thread.join(STOP_PATIENCE)


@pytest.mark.parametrize("keys", [0, 3])
def test_a_batch_is_settled_when_a_long_transaction_of_another_program_ends(
    keys: int, writers: list[Writer], caplog: pytest.LogCaptureFixture, scripted: Script
):
    first, *_ = ids = put(10, keys=keys)

    def accept(message: Message) -> Outcome:
        if message.id == first:
            writers.append(Writer())
        return ACCEPTED

    scripted.answer = accept
    with committed_when_logged(caplog, writers), Relay(using="default", limits=PATIENT) as relay:
        assert relay.drain(max_seconds=30).processed == 10
    assert states("default") == [Status.PROCESSED] * 10
    assert sorted(scripted.published()) == ids
    assert not KeyLock.objects.exists()
    assert caplog.text.count("cannot be settled yet") == 1


def test_a_batch_goes_back_when_a_long_transaction_of_another_program_ends(
    writers: list[Writer], caplog: pytest.LogCaptureFixture
):
    put(4, keys=2)
    before = rows("default")
    with (
        another_alias("default", timeout=TIMEOUT) as using,
        committed_when_logged(caplog, writers),
        pytest.raises(KeyError),
        claim(using),
    ):
        writers.append(Writer())
        raise KeyError
    assert rows("default") == before
    assert not KeyLock.objects.exists()


def test_a_batch_whose_lease_has_ended_is_given_up(writers: list[Writer]):
    put(1)
    with (
        another_alias("default", timeout=TIMEOUT) as using,
        pytest.raises(OperationalError, match="database is locked"),
        claim(using, max_seconds=0.2),
    ):
        writers.append(Writer())
    writers.pop().commit()
    eventually(lambda: OutboxMessage.objects.due().exists())
