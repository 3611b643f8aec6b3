"""The purge: old processed messages are deleted in batches, and nothing else ever is."""

import datetime
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage
from django_outbox.retention.purge import PURGE_SWEEP_INTERVAL, purge
from django_outbox.stores import claiming
from django_outbox.stores.claiming import TimeCursor
from django_outbox.tasks import purge_outbox
from tests.conftest import ALIASES
from tests.support.databases import another_alias, isolation
from tests.support.messages import Clock, ago, count, rows, write

pytestmark = pytest.mark.django_db(databases=ALIASES)

PUBLISHERS = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}
LOCKING = ["postgresql", "mariadb"]
WEEK = datetime.timedelta(days=7)


def processed(using: str, count: int, **age: float) -> list[int]:
    ids = write(using, count)
    OutboxMessage.objects.using(using).filter(id__in=ids).update(
        available_at=None, processed_at=ago(**age), occurred_at=ago(days=1000)
    )
    return ids


@pytest.fixture(autouse=True)
def only_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of other apps are not purged."""
    monkeypatch.setattr("django_outbox.retention.purge._others", [])


@pytest.fixture
def expensive_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep counts as one that took long: the next one comes after the longest interval."""
    monkeypatch.setattr(claiming, "CHEAP_SWEEP", -3600.0)


def outbox(**settings: Any) -> Any:
    return override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS, **settings})


@pytest.mark.parametrize("run", [purge, purge_outbox], ids=["function", "Celery's task"])
def test_only_messages_processed_before_the_retention_are_deleted(using: str, run: Callable[..., int]):
    processed(using, 2, days=8)
    young = processed(using, 2, days=6)
    pending, failed = write(using, 2)
    table = OutboxMessage.objects.using(using)
    table.filter(id=pending).update(available_at=ago(days=1000), occurred_at=ago(days=1000))
    table.filter(id=failed).update(available_at=None, failed_at=ago(days=1000), occurred_at=ago(days=1000))
    assert run(using=using) == 2
    assert sorted(rows(using)) == sorted([*young, pending, failed])


def test_no_retention_keeps_everything_and_asks_nothing(using: str):
    processed(using, 1, days=10_000)
    with outbox(RETENTION=None), CaptureQueriesContext(connections[using]) as queries:
        assert purge(using=using) == 0
    assert len(queries) == 0
    with outbox(RETENTION=None):
        assert purge(using=using, older_than=WEEK) == 1


def test_the_longest_retention_that_python_can_say_keeps_everything(using: str):
    processed(using, 1, days=10_000)
    with outbox(RETENTION=datetime.timedelta.max):
        assert purge(using=using) == 0


def test_it_deletes_in_batches_the_oldest_first(using: str):
    newer = processed(using, 15, days=10)
    processed(using, 10, days=20)
    asked: list[int] = []

    def is_stopping() -> bool:
        asked.append(len(rows(using)))
        return len(asked) == 2

    assert purge(using=using, is_stopping=is_stopping, batch_size=10) == 10
    assert asked == [25, 15]
    assert sorted(rows(using)) == newer
    assert purge(using=using) == 15


def test_it_begins_no_batch_after_its_time(using: str):
    processed(using, 1, days=10)
    assert purge(using=using, max_seconds=0) == 0
    assert purge(using=using, max_seconds=60) == 1


# An old snapshot


TIDY = {"postgresql": f"ANALYZE {OutboxMessage._meta.db_table}", "mariadb": "SELECT 1"}
BATCHES = 10
BATCH = 50


@contextmanager
def old_snapshot(using: str) -> Iterator[None]:
    """Hold a transaction open in another session that sees the table as it is now."""
    with another_alias(using, **isolation(using, "repeatable read")) as other, transaction.atomic(using=other):
        assert count(other)
        yield


def entries_read(using: str) -> int:
    """Return how many index entries of processed messages this session has read, those of dead rows included.

    Only the differences within one transaction mean something.
    """
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_stat_get_xact_tuples_returned('outbox_processed'::regclass)")
        return int(cursor.fetchone()[0])


@pytest.fixture
def many_batches() -> None:
    for using in LOCKING:
        made = [OutboxMessage(type="t", payload=1, available_at=None, processed_at=ago(days=10)) for _ in range(500)]
        assert len(made) == BATCH * BATCHES
        OutboxMessage.objects.using(using).bulk_create(made)
        with connections[using].cursor() as cursor:
            cursor.execute(TIDY[using])


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.usefixtures("many_batches")
def test_a_batch_reads_no_entries_of_deleted_messages_despite_an_old_snapshot():
    using, read = "postgresql", []
    with old_snapshot(using), transaction.atomic(using=using):

        def is_stopping() -> bool:
            read.append(entries_read(using))
            return False

        assert purge(using=using, is_stopping=is_stopping, batch_size=BATCH) == BATCH * BATCHES
    by_batch = [later - earlier for earlier, later in itertools.pairwise(read)]
    assert len(by_batch) == BATCHES
    # The planner itself looks at a few entries.
    assert 0 < max(by_batch) <= 2 * BATCH, by_batch


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.usefixtures("many_batches")
def test_a_purge_begins_where_the_last_one_ended_despite_an_old_snapshot(expensive_sweeps: None):
    using, position = "postgresql", TimeCursor()
    with old_snapshot(using):
        assert purge(using=using, position=position) == BATCH * BATCHES
        processed(using, BATCH // 2, days=9)
        with transaction.atomic(using=using):
            before = entries_read(using)
            assert purge(using=using, position=position) == BATCH // 2
            assert 0 < entries_read(using) - before <= BATCH


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
@pytest.mark.usefixtures("many_batches")
def test_each_batch_begins_where_the_previous_one_ended(using: str):
    with CaptureQueriesContext(connections[using]) as queries:
        assert purge(using=using, batch_size=BATCH) == BATCH * BATCHES
    reads = [query["sql"] for query in queries if "ORDER BY processed_at, id LIMIT" in query["sql"]]
    assert len(set(reads)) == len(reads) == BATCHES + 1


@pytest.mark.parametrize("using", LOCKING)
def test_a_message_committed_behind_the_end_of_the_last_run_is_deleted_by_the_next_sweep(
    using: str, expensive_sweeps: None
):
    clock = Clock()
    position = TimeCursor(clock=clock, max_interval=PURGE_SWEEP_INTERVAL)
    processed(using, 3, days=10)
    assert purge(using=using, position=position) == 3
    late = processed(using, 2, days=11)
    processed(using, 1, days=9)
    clock.now += PURGE_SWEEP_INTERVAL / 2
    assert purge(using=using, position=position) == 1
    assert sorted(rows(using)) == late
    clock.now += PURGE_SWEEP_INTERVAL / 2
    assert purge(using=using, position=position) == 2


@pytest.mark.parametrize("using", LOCKING)
def test_messages_processed_at_the_same_moment_are_all_deleted_across_batches(using: str):
    processed(using, 10, days=10)
    assert len({values["processed_at"] for values in rows(using).values()}) == 1
    assert purge(using=using, batch_size=3) == 10


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", ["postgresql"])
def test_two_purges_at_once_pass_over_each_others_rows(using: str):
    processed(using, 5, days=10)
    with transaction.atomic(using=using), another_alias(using) as other:
        assert purge(using=using) == 5
        assert purge(using=other) == 0
