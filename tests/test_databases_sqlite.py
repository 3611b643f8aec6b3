"""SQLite's claim is a lease: it runs out, it is lost to another relay, and it is given back."""

import datetime
import logging
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.utils import timezone

from django_outbox import OutboxMessage, enqueue
from django_outbox.databases.sqlite import SQLite
from django_outbox.models import Status
from tests.messages_tools import claim, claimed_ids, eventually, row, rows, settle, write

pytestmark = pytest.mark.django_db


class Undo(Exception):
    pass


def test_an_expired_lease_moves_the_batch_on_and_the_loser_writes_nothing(caplog: pytest.LogCaptureFixture):
    first, second, third = write("default", 3)
    with claim("default", max_seconds=0.05) as lost:
        eventually(lambda: OutboxMessage.objects.due().count() == 3)
        with claim("default") as won:
            assert [message.id for message in won.messages] == [first, second, third]
            before = rows("default")
            with caplog.at_level(logging.WARNING, "django_outbox"):
                settle("default", lost, processed=[first], retried=[(second, "", 1.0)])
            assert rows("default") == before
            assert "3 messages were not settled" in caplog.text
            assert "OUTBOX['LEASE']" in caplog.text
            caplog.clear()
            settle("default", won, failed=[(first, "x")], processed=[second, third])
            assert caplog.text == ""
    assert row("default", first).status is Status.FAILED


def test_a_loser_that_raises_gives_nothing_back():
    write("default")
    lost = claim("default", max_seconds=0.05)
    lost.__enter__()
    eventually(lambda: OutboxMessage.objects.due().exists())
    with claim("default"):
        held = rows("default")
        lost.__exit__(Undo, Undo(), None)
        assert rows("default") == held


def test_a_batch_that_nobody_settled_goes_back():
    write("default", 2)
    before = rows("default")
    with claim("default"):
        assert rows("default") != before
    assert rows("default") == before


def test_a_claim_that_finds_its_candidates_taken_looks_for_more(monkeypatch: pytest.MonkeyPatch):
    ids = write("default", 4)
    fetch = SQLite.fetch

    def fetch_late(self: SQLite, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        found = fetch(self, sql, params)
        monkeypatch.undo()
        OutboxMessage.objects.filter(id__in=ids[:2]).update(available_at=F("available_at") + datetime.timedelta(1))
        return found

    monkeypatch.setattr(SQLite, "fetch", fetch_late)
    assert claimed_ids("default", limit=2) == ids[2:]


def test_nobody_elses_candidates_are_claimed_with_the_rest(monkeypatch: pytest.MonkeyPatch):
    ids = write("default", 4)
    fetch = SQLite.fetch

    def fetch_late(self: SQLite, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
        found = fetch(self, sql, params)
        monkeypatch.undo()
        OutboxMessage.objects.filter(id=ids[1]).update(available_at=None, processed_at=timezone.now())
        return found

    monkeypatch.setattr(SQLite, "fetch", fetch_late)
    assert claimed_ids("default") == [ids[0], ids[2], ids[3]]
    assert row("default", ids[1]).status is Status.PROCESSED


def test_every_time_is_stored_with_six_digits_because_times_are_compared_as_text():
    with transaction.atomic():
        enqueue("now", 1)
        enqueue("soon", 1, delay=0.000001)
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT CAST(available_at AS TEXT) FROM django_outbox_outboxmessage")
        times = [time for (time,) in cursor.fetchall()]
    assert [len(time.rpartition(".")[2]) for time in times] == [6, 6]
