"""The purge: what is processed and old goes in batches, and nothing else ever does."""

import datetime
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage
from django_outbox.retention import purge
from tests.conftest import ALIASES
from tests.messages_tools import ago, another_alias, rows, write

pytestmark = pytest.mark.django_db(databases=ALIASES)

PUBLISHERS = {"default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}}
WEEK = datetime.timedelta(days=7)


def processed(using: str, count: int, **age: float) -> list[int]:
    ids = write(using, count)
    OutboxMessage.objects.using(using).filter(id__in=ids).update(
        available_at=None, processed_at=ago(**age), occurred_at=ago(days=1000)
    )
    return ids


def outbox(**settings: Any) -> Any:
    return override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS, **settings})


def test_only_what_was_processed_before_the_retention_goes(using: str):
    processed(using, 2, days=8)
    young = processed(using, 2, days=6)
    pending, failed = write(using, 2)
    table = OutboxMessage.objects.using(using)
    table.filter(id=pending).update(available_at=ago(days=1000), occurred_at=ago(days=1000))
    table.filter(id=failed).update(available_at=None, failed_at=ago(days=1000), occurred_at=ago(days=1000))
    assert purge(using=using) == 2
    assert sorted(rows(using)) == sorted([*young, pending, failed])


def test_the_age_may_be_given(using: str):
    processed(using, 1, hours=3)
    (young,) = processed(using, 1, hours=1)
    assert purge(using=using, older_than=datetime.timedelta(hours=2)) == 1
    assert list(rows(using)) == [young]


def test_no_retention_keeps_everything_and_asks_nothing(using: str):
    processed(using, 1, days=10_000)
    with outbox(RETENTION=None), CaptureQueriesContext(connections[using]) as queries:
        assert purge(using=using) == 0
    assert len(queries) == 0
    with outbox(RETENTION=None):
        assert purge(using=using, older_than=WEEK) == 1


def test_a_retention_of_zero_deletes_all_that_is_processed(using: str):
    processed(using, 2, seconds=1)
    (pending,) = write(using)
    with outbox(RETENTION=datetime.timedelta(0)):
        assert purge(using=using) == 2
    assert list(rows(using)) == [pending]


def test_the_longest_retention_that_python_can_say_keeps_everything(using: str):
    processed(using, 1, days=10_000)
    with outbox(RETENTION=datetime.timedelta.max):
        assert purge(using=using) == 0


def test_it_deletes_in_batches_the_oldest_first(using: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("django_outbox.retention.PURGE_BATCH_SIZE", 10)
    newer = processed(using, 15, days=10)
    processed(using, 10, days=20)
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(len(rows(using)))
        return len(asked) == 2

    assert purge(using=using, stopped=stopped) == 10
    assert asked == [25, 15]
    assert sorted(rows(using)) == newer
    assert purge(using=using) == 15


def test_it_begins_no_batch_after_its_time(using: str):
    processed(using, 1, days=10)
    assert purge(using=using, max_seconds=0) == 0
    assert purge(using=using, max_seconds=60) == 1


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", ["postgresql"])
def test_two_purges_at_once_pass_over_each_others_rows(using: str):
    processed(using, 5, days=10)
    with transaction.atomic(using=using), another_alias(using) as other:
        assert purge(using=using) == 5
        assert purge(using=other) == 0
