"""`once` and `once_many`: each consumer handles each message once, whatever overlaps or rolls back."""

import datetime
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from django.db import IntegrityError, connections, transaction
from django.test import override_settings
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_outbox.brokers.consumer import derive_uuid
from django_outbox.exceptions import InvalidMessage, TransactionRequired
from django_outbox.inbox import once, once_many
from django_outbox.inbox.deduplication import purge_records
from django_outbox.inbox.models import HandledMessage
from django_outbox.utils.threads import own_connection
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)


def handle(message_id: Any, consumer: str = "billing", *, using: str) -> bool:
    with transaction.atomic(using=using):
        return once(message_id, consumer, using=using)


def test_a_taken_id_is_an_error_and_not_a_known_message():
    """The sequence is behind, as after a move without its value."""
    assert handle("first", using="postgresql")
    with connections["postgresql"].cursor() as cursor:
        table = HandledMessage._meta.db_table
        cursor.execute(f"SELECT setval(pg_get_serial_sequence('{table}', 'id'), min(id), false) FROM {table}")
    with pytest.raises(IntegrityError):
        handle("second", using="postgresql")
    assert handle("second", using="postgresql")
    assert not handle("second", using="postgresql")


def count(using: str) -> int:
    return HandledMessage.objects.using(using).count()


def call(work: Callable[[], Any], using: str) -> "Future[Any]":
    """Run a function in a transaction of its own in another thread."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            with own_connection(using), transaction.atomic(using=using):
                found = work()
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(found)

    threading.Thread(target=run, daemon=True).start()
    return future


def test_a_message_is_new_once_for_each_consumer(using):
    id = uuid.uuid4()
    assert handle(id, using=using)
    assert not handle(id, using=using)
    assert not handle(str(id).upper(), using=using)
    assert handle(id, "Billing", using=using)
    assert handle(id, "shipping", using=using)
    assert count(using) == 3


def test_a_savepoint_that_rolls_back_takes_the_record_with_it(using):
    id = uuid.uuid4()
    with transaction.atomic(using=using):
        with pytest.raises(ZeroDivisionError), transaction.atomic(using=using):
            assert once(id, "billing", using=using)
            _ = 1 / 0
        assert once(id, "billing", using=using)
    assert count(using) == 1


@pytest.mark.parametrize("rolls_back", [False, True], ids=["commit", "rollback"])
@pytest.mark.parametrize("using", LOCKING)
def test_a_second_transaction_waits_for_the_first(using, rolls_back):
    id = uuid.uuid4()
    with transaction.atomic(using=using):
        assert once(id, "billing", using=using)
        second = call(partial(once, id, "billing", using=using), using)
        eventually(lambda: waiters(using) == 1, "the second transaction waits")
        transaction.set_rollback(rolls_back, using=using)
    assert second.result(60) is rolls_back
    assert count(using) == 1


def waiters(using: str) -> int:
    """Return how many transactions wait for a lock of another one, seen by another session."""
    sql = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        if using == "postgresql"
        else "SELECT count(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'INSERT IGNORE%'"
    )
    connection = connections[using].copy()
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return int(cursor.fetchone()[0])
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("using", "returns_rows"), [*((alias, True) for alias in LOCKING), *((alias, False) for alias in MYSQL_AND_MARIADB)]
)
def test_overlapping_batches_in_any_order_do_not_deadlock(using, returns_rows, monkeypatch):
    if not returns_rows:
        # As on MySQL.
        monkeypatch.setattr(type(connections[using].features), "can_return_rows_from_bulk_insert", False)
    ids = [uuid.uuid4() for _ in range(200)]
    barrier = threading.Barrier(4)

    def handle_all(order: list[uuid.UUID]) -> set[Any]:
        barrier.wait(60)
        return once_many(order, "billing", using=using)

    callers = [call(partial(handle_all, order), using) for order in (ids, ids[::-1], ids[50:] + ids[:50], ids[::2])]
    results = [caller.result(60) for caller in callers]
    assert sorted(id for result in results for id in result) == sorted(ids)


def test_of_a_batch_the_new_ids_are_returned_as_they_were_given(using):
    known, new = str(uuid.uuid4()).upper(), uuid.uuid4()
    handle(known, using=using)
    with transaction.atomic(using=using):
        found = once_many([known, new, "order-7", str(new), "order-7"], "billing", using=using)
    assert found == {new, "order-7"}
    with transaction.atomic(using=using):
        assert once_many([new, "order-7"], "billing", using=using) == set()
        assert once_many([], "billing", using=using) == set()


def test_a_large_batch_is_written_with_few_statements(using, django_assert_num_queries):
    with transaction.atomic(using=using), django_assert_num_queries(3, connection=connections[using]):
        assert len(once_many([str(n) for n in range(2500)], "billing", using=using)) == 2500
    assert count(using) == 2500


@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
@given(st.data())
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_without_returned_rows_the_new_ids_are_found(using, monkeypatch, data):
    monkeypatch.setattr(type(connections[using].features), "can_return_rows_from_bulk_insert", False)
    ids = [str(n) for n in range(data.draw(st.integers(1, 20)))]
    known = data.draw(st.sets(st.sampled_from(ids)))
    with transaction.atomic(using=using):
        HandledMessage.objects.using(using).all().delete()
        assert once_many(known, "billing", using=using) == known
        assert once_many(ids, "billing", using=using) == set(ids) - known
    assert count(using) == len(ids)


UUIDS = st.integers(0, 2**128 - 1).map(lambda bits: uuid.UUID(int=bits))
"""UUIDs of any version. MariaDB itself refuses some."""


@given(ids=st.lists(st.text(min_size=1, max_size=30) | UUIDS | UUIDS.map(str), max_size=20))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_string_and_any_uuid_is_an_id(using, ids):
    with transaction.atomic(using=using):
        HandledMessage.objects.using(using).all().delete()
        first = [once(id, "billing", using=using) for id in ids]
        assert not any(once(id, "billing", using=using) for id in ids)
    assert sum(first) == count(using)


def test_ids_that_differ_only_in_case_or_blanks_are_different(using):
    ids = ["a", "A", "a ", "ä", "a\x00"]
    with transaction.atomic(using=using):
        assert once_many(ids, "billing", using=using) == set(ids)


@pytest.mark.parametrize("function", [once, lambda id, *args, **kwargs: once_many([id], *args, **kwargs)])
def test_outside_a_transaction_nothing_is_written(using, function):
    with pytest.raises(TransactionRequired, match=rf"with transaction.atomic\(using='{using}'\)"):
        function("7", "billing", using=using)
    assert count(using) == 0


def test_a_transaction_on_another_database_is_named():
    with transaction.atomic(using="postgresql"):
        with pytest.raises(TransactionRequired, match="open on 'postgresql': did you mean using='postgresql'"):
            once("7", "billing", using="default")
        assert once("7", "billing", using="postgresql")


@pytest.mark.parametrize("id", ["", "x" * 256, None, 7, b"7"])
def test_an_invalid_id_is_refused_and_the_transaction_goes_on(using, id):
    with transaction.atomic(using=using):
        with pytest.raises(InvalidMessage, match="message_id"):
            once(id, "billing", using=using)
        assert once("7", "billing", using=using)


@pytest.mark.parametrize("consumer", ["", "x" * 64, None, 7, "billing ", "bill\ning"])
def test_an_invalid_consumer_is_refused(consumer):
    with transaction.atomic(), pytest.raises(InvalidMessage, match="consumer"):
        once("7", consumer)


def test_a_purge_deletes_old_records_only(using, monkeypatch):
    monkeypatch.setattr("django_outbox.retention.purge.PURGE_BATCH_SIZE", 2)
    with transaction.atomic(using=using):
        once_many([str(n) for n in range(7)], "billing", using=using)
    records = HandledMessage.objects.using(using)
    old = timezone.now() - datetime.timedelta(days=31)
    records.filter(pk__in=list(records.values_list("pk", flat=True)[:5])).update(handled_at=old)
    with override_settings(OUTBOX={"PUBLISHERS": MEMORY, "INBOX_RETENTION": None}):
        purge_records(using, lambda: False)
    purge_records(using, lambda: True)
    assert count(using) == 7
    purge_records(using, lambda: False)
    assert count(using) == 2


MEMORY = {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}


def test_the_derived_id_depends_on_the_parts_and_their_lengths():
    assert derive_uuid(b"ab", b"c") != derive_uuid(b"a", b"bc")
    assert derive_uuid(b"ab", b"c") == derive_uuid(b"ab", b"c")
    assert derive_uuid(b"").version == 5
