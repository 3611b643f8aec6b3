"""The live line of `run_outbox`."""

import io
import time
from typing import Any

import pytest
from django.db import transaction

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.management.progress import ProgressLine
from django_outbox.relay import Relay
from django_outbox.relay.tally import Tally


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def line_shown(relay: Relay, **options: Any) -> str:
    terminal = Terminal()
    with ProgressLine(relay, terminal, refresh=0.02, **options):
        deadline = time.monotonic() + 20
        while "backlog" not in terminal.getvalue():
            assert time.monotonic() < deadline, "no line was drawn"
            time.sleep(0.01)
    assert terminal.getvalue().endswith("\r\x1b[2K"), "the line is wiped at the end"
    return terminal.getvalue()


@pytest.mark.django_db(transaction=True)
def test_shows_backlog_rate_and_failures():
    with transaction.atomic():
        enqueue_many([OutboxMessage(type="t", payload=n) for n in range(3)])
    with Relay() as relay:
        assert "backlog 3 · 0 msg/s · delivered 0 · retried 0 · failed 0" in line_shown(relay)


@pytest.mark.django_db(transaction=True)
def test_counts_a_large_backlog_only_up_to_its_limit():
    with transaction.atomic():
        enqueue_many([OutboxMessage(type="t", payload=n) for n in range(4)])
    with Relay() as relay:
        assert "backlog over 2 ·" in line_shown(relay, backlog_limit=2)


@pytest.mark.django_db(transaction=True)
def test_shows_that_the_broker_is_unavailable():
    with Relay() as relay:
        permit = relay._shared.breakers.admit("default", 10)
        assert permit
        relay._shared.breakers.note("default", permit, Tally(unanswered=1, outage="connection refused"))
        assert "broker or database unavailable" in line_shown(relay)


def test_writes_nothing_without_a_terminal():
    stream = io.StringIO()
    with Relay() as relay, ProgressLine(relay, stream):
        time.sleep(0.1)
    assert stream.getvalue() == ""
