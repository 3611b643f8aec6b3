"""The live line of `run_outbox`."""

import io
import time

import pytest
from django.db import transaction

from django_outbox import OutboxMessage, enqueue_many, progress
from django_outbox.delivery import Tally
from django_outbox.progress import ProgressLine
from django_outbox.relay import Relay


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def line_shown(relay: Relay) -> str:
    terminal = Terminal()
    with ProgressLine(relay, terminal):
        deadline = time.monotonic() + 20
        while "backlog" not in terminal.getvalue():
            assert time.monotonic() < deadline, "no line was drawn"
            time.sleep(0.01)
    assert terminal.getvalue().endswith("\r\x1b[2K"), "the line is wiped at the end"
    return terminal.getvalue()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REFRESH", 0.02)


@pytest.mark.django_db(transaction=True)
def test_shows_backlog_rate_and_failures():
    with transaction.atomic():
        enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)])
    with Relay() as relay:
        assert "backlog 3 · 0 msg/s · processed 0 · retried 0 · failed 0" in line_shown(relay)


@pytest.mark.django_db(transaction=True)
def test_counts_a_large_backlog_only_up_to_its_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "BACKLOG_LIMIT", 2)
    with transaction.atomic():
        enqueue_many([OutboxMessage(type="t", payload=n) for n in range(4)])
    with Relay() as relay:
        assert "backlog over 2 ·" in line_shown(relay)


@pytest.mark.django_db(transaction=True)
def test_says_when_the_relay_waits_for_the_broker():
    with Relay() as relay:
        relay._health.note("default", Tally(outage="connection refused"))
        assert "waiting for the broker or the database" in line_shown(relay)


def test_writes_nothing_where_there_is_no_terminal():
    stream = io.StringIO()
    with Relay() as relay, ProgressLine(relay, stream):
        time.sleep(0.1)
    assert stream.getvalue() == ""
