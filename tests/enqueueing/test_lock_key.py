"""`lock_key=True`: the IDs of one key follow the order of commits, even if transactions overlap."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.management.sql import emit_post_migrate_signal
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.models import KeyLock
from django_outbox.stores import get_store, mysql
from django_outbox.stores.locks import KEY_LOCKS, key_lock_numbers
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.databases import another_alias, isolation
from tests.support.messages import claim, settle

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

locking = pytest.mark.parametrize("using", LOCKING)


@pytest.fixture
def other(using: str) -> Iterator[str]:
    """A second connection, for an overlapping transaction."""
    with another_alias(using) as alias:
        yield alias


def delivered(using: str) -> list[int]:
    """Deliver the due messages and return their payloads in the order of delivery."""
    with claim(using) as batch:
        settle(using, batch, processed=[message.id for message in batch.messages])
        return [int(message.payload) for message in batch.messages]


@locking
def test_the_lock_does_not_wait_for_another_key(using: str, other: str):
    with transaction.atomic(using=using):
        enqueue("a", 1, key="k", using=using, lock_key=True)
        with transaction.atomic(using=other):
            enqueue("a", 2, key="another", using=other, lock_key=True)


@locking
def test_a_rollback_releases_the_lock(using: str, other: str):
    transaction.set_autocommit(False, using=using)
    try:
        enqueue("a", 1, key="k", using=using, lock_key=True)
        transaction.rollback(using=using)
        with transaction.atomic(using=other):
            enqueue("a", 2, key="k", using=other, lock_key=True)
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)
    assert delivered(using) == [2]


def test_a_message_without_a_key_locks_nothing(using: str):
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue("a", 1, using=using, lock_key=True)
    assert sum("INSERT" in query["sql"] or "lock" in query["sql"] for query in queries.captured_queries) == 1


def test_the_setting_lock_keys_is_the_default(using: str):
    with (
        override_settings(
            OUTBOX={
                "PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}},
                "LOCK_KEYS": True,
            }
        ),
        transaction.atomic(using=using),
        CaptureQueriesContext(connections[using]) as queries,
    ):
        enqueue("a", 1, key="k", using=using)
        by_setting = len(queries)
        enqueue("a", 1, key="k", using=using, lock_key=False)
        without = len(queries) - by_setting
    # SQLite has one writer at a time, so there is nothing to lock.
    assert by_setting - without == (0 if using == "default" else 1)


LEVELS = ["read committed", "repeatable read"]


@locking
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("rows", "keys"), [("there", 40), ("missing", 1)])
def test_many_writers_never_deadlock(using: str, level: str, rows: str, keys: int):
    """Every third transaction rolls back, including the first, and those that waited do not see its rows."""
    workers, rounds = 8, 6
    if rows == "missing":
        # As after a flush that sends no signal.
        KeyLock.objects.using(using).all().delete()
        mysql._complete.clear()
    start = threading.Barrier(workers, timeout=60)

    def write(worker: int) -> int:
        written = 0
        with another_alias(using, **isolation(using, level)) as alias:
            connections[alias].ensure_connection()
            start.wait()
            for turn in range(rounds):
                names = [f"order-{(worker * turn + n) % keys}" for n in range(min(keys, 4))]
                with transaction.atomic(using=alias):
                    messages = [OutboxMessage(type="a", key=name, payload=0) for name in names]
                    enqueue_many(messages, using=alias, lock_key=True)
                    enqueue("a", 0, key=names[0], using=alias, lock_key=True)
                    if turn % 3 == 0:
                        transaction.set_rollback(True, using=alias)
                    else:
                        written += len(names) + 1
        return written

    with ThreadPoolExecutor(workers) as pool:
        written = sum(pool.map(write, range(workers)))
    assert OutboxMessage.objects.using(using).count() == written


@pytest.mark.parametrize("level", [*LEVELS, "serializable"])
@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
def test_a_table_of_key_locks_that_is_emptied_under_a_running_process_is_filled_again(using: str, level: str):
    """The first transaction may have locked the gap before it notices."""
    options = {**isolation(using, level), "init_command": "SET SESSION innodb_lock_wait_timeout = 2"}
    with another_alias(using, **options) as alias:
        for n in range(3):
            with transaction.atomic(using=alias):
                enqueue("a", n, key="k", using=alias, lock_key=True)
            if n == 0:
                KeyLock.objects.using(using).all().delete()
        assert set(KeyLock.objects.using(alias).values_list("number", flat=True)) == set(range(KEY_LOCKS))


def test_waiting_for_a_key_takes_no_snapshot():
    """After waiting, the caller reads what the other transaction committed, even under REPEATABLE READ."""
    with another_alias("mariadb", **isolation("mariadb", "repeatable read")) as alias:
        with transaction.atomic(using=alias):
            # A message first, so that the connection is known to be right.
            enqueue("a", 0, key="another", using=alias, lock_key=True)
        with transaction.atomic(using=alias):
            get_store(connections[alias]).lock_keys({"k"})
            with transaction.atomic(using="mariadb"):
                enqueue("a", 1, using="mariadb")
            assert OutboxMessage.objects.using(alias).count() == 2


def test_the_rows_of_all_key_locks_exist_after_migrate_and_flush(using: str):
    """Both send this signal."""
    KeyLock.objects.using(using).all().delete()
    emit_post_migrate_signal(verbosity=0, interactive=False, db=using)
    numbers = set(KeyLock.objects.using(using).values_list("number", flat=True))
    assert numbers == (set(range(KEY_LOCKS)) if using in MYSQL_AND_MARIADB else set())


@locking
def test_many_writers_of_many_keys_keep_the_order_of_each_key(using: str):
    """IDs assigned under the lock have the same order as the numbers drawn under it."""
    numbers: dict[str, int] = {f"k{n}": 0 for n in range(5)}
    workers, rounds = 8, 15

    def write(worker: int) -> None:
        with another_alias(using) as alias:
            for turn in range(rounds):
                keys = sorted(numbers)[turn % 3 : turn % 3 + 3]
                with transaction.atomic(using=alias):
                    messages = [OutboxMessage(type="a", key=key, payload=0) for key in (*reversed(keys), "")]
                    enqueue_many(messages, using=alias, lock_key=True)
                    for key in keys:
                        numbers[key] += 1
                        enqueue("b", numbers[key], key=key, using=alias, lock_key=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write, range(workers)))
    for key, count in numbers.items():
        table = OutboxMessage.objects.using(using).filter(type="b", key=key).order_by("id")
        assert [message.payload for message in table] == list(range(1, count + 1))


def test_the_number_of_locks_is_limited_and_they_are_taken_in_one_order():
    slots = key_lock_numbers({f"order-{n}" for n in range(50_000)} | {""})
    assert len(slots) == KEY_LOCKS
    assert slots == sorted(slots)
