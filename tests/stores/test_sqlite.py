"""SQLite's claim is a lease that expires, is lost to another relay, or is given back."""

import logging

import pytest
from django.db import connections, transaction

from django_outbox import OutboxMessage, enqueue
from django_outbox.models import KeyLock, Status
from tests.support.databases import another_alias
from tests.support.messages import claim, claimed_ids, row, rows, settle, write
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db


def test_a_batch_with_an_expired_lease_is_claimed_again_and_its_first_relay_writes_nothing(
    caplog: pytest.LogCaptureFixture,
):
    first, second, third = write("default", 3)
    with claim("default", max_seconds=0.05) as lost:
        eventually(lambda: OutboxMessage.objects.due().count() == 3)
        with claim("default") as won:
            assert [message.id for message in won.messages] == [first, second, third]
            before = rows("default")
            with caplog.at_level(logging.ERROR, "django_outbox"):
                settle("default", lost, processed=[first], retried=[(second, "", 1.0)])
            assert rows("default") == before
            assert "3 of 3 claimed messages" in caplog.text
            assert "OUTBOX['CLAIM_TIMEOUT']" in caplog.text
            caplog.clear()
            settle("default", won, failed=[(first, "x")], processed=[second, third])
            assert caplog.text == ""
    assert row("default", first).status is Status.FAILED


def test_a_settled_or_returned_batch_leaves_no_lease_behind():
    ids = write("default", 2, key="a")
    with claim("default", limit=1) as batch:
        assert KeyLock.objects.count() == 1
        settle("default", batch, processed=ids[:1])
        assert KeyLock.objects.count() == 0
    with claim("default"):
        assert KeyLock.objects.count() == 1
    assert KeyLock.objects.count() == 0


def test_an_idle_poll_takes_no_lock():
    with transaction.atomic(), another_alias("default", timeout=0.1) as other:
        write("default")
        OutboxMessage.objects.all().delete()
        assert claimed_ids(other) == []


def test_every_time_is_stored_with_six_digits_because_times_are_compared_as_text():
    with transaction.atomic():
        enqueue("now", 1)
        enqueue("soon", 1, delay=0.000001)
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT CAST(available_at AS TEXT) FROM django_outbox_outboxmessage")
        times = [time for (time,) in cursor.fetchall()]
    assert [len(time.rpartition(".")[2]) for time in times] == [6, 6]
