"""`serialize=True`: ids of one key follow commits, even where transactions overlap."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet  # before Python 3.11 not the built-in one

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.databases.base import LOCK_SLOTS, lock_slots
from tests.conftest import ALIASES
from tests.messages_tools import another_alias, claim, settle

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

locking = pytest.mark.parametrize("using", ["postgresql", "mariadb"])


@pytest.fixture
def other(using: str) -> Iterator[str]:
    """A second connection, for a transaction that overlaps."""
    with another_alias(using) as alias:
        yield alias


def delivered(using: str) -> list[int]:
    """Deliver what is due, and return the payloads in their order."""
    with claim(using) as batch:
        settle(using, batch, processed=[message.id for message in batch.messages])
        return [int(message.payload) for message in batch.messages]


@locking
def test_without_it_a_message_may_be_delivered_before_an_older_one_of_its_key(using: str, other: str):
    """The inversion that it is there to prevent: the first transaction to enqueue is the last to commit."""
    with transaction.atomic(using=using):
        enqueue("a", 1, key="k", using=using)
        with transaction.atomic(using=other):
            enqueue("a", 2, key="k", using=other)
        assert delivered(other) == [2]
    assert delivered(using) == [1]


@locking
def test_with_it_the_second_waits_until_the_first_has_committed(using: str):
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        with another_alias(using) as alias, transaction.atomic(using=alias):
            begun.set()
            enqueue("a", 2, key="k", using=alias, serialize=True)
            order.append("second")

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic(using=using):
            enqueue("a", 1, key="k", using=using, serialize=True)
            future = pool.submit(second)
            begun.wait()
            with pytest.raises(NotYet):
                future.result(timeout=0.5)
            order.append("first")
        future.result(timeout=30)
    assert order == ["first", "second"]
    assert delivered(using) == [1, 2]


@locking
def test_it_waits_for_no_other_key(using: str, other: str):
    with transaction.atomic(using=using):
        enqueue("a", 1, key="k", using=using, serialize=True)
        with transaction.atomic(using=other):
            enqueue("a", 2, key="another", using=other, serialize=True)


@locking
def test_a_rollback_frees_the_key(using: str, other: str):
    transaction.set_autocommit(False, using=using)
    try:
        enqueue("a", 1, key="k", using=using, serialize=True)
        transaction.rollback(using=using)
        with transaction.atomic(using=other):
            enqueue("a", 2, key="k", using=other, serialize=True)
    finally:
        transaction.rollback(using=using)
        transaction.set_autocommit(True, using=using)
    assert delivered(using) == [2]


def test_a_message_without_a_key_locks_nothing(using: str):
    with transaction.atomic(using=using), CaptureQueriesContext(connections[using]) as queries:
        enqueue("a", 1, using=using, serialize=True)
    assert sum("INSERT" in query["sql"] or "lock" in query["sql"] for query in queries.captured_queries) == 1


def test_the_setting_makes_it_the_default(using: str):
    with (
        override_settings(
            OUTBOX={
                "PUBLISHERS": {"default": {"BACKEND": "django_outbox.publishers.memory.MemoryPublisher"}},
                "SERIALIZE_KEYS": True,
            }
        ),
        transaction.atomic(using=using),
        CaptureQueriesContext(connections[using]) as queries,
    ):
        enqueue("a", 1, key="k", using=using)
        by_setting = len(queries)
        enqueue("a", 1, key="k", using=using, serialize=False)
        without = len(queries) - by_setting
    # On SQLite whoever writes is alone, and there is nothing to lock.
    assert by_setting - without == {"default": 0, "postgresql": 1, "mariadb": 1}[using]


@locking
def test_many_writers_of_many_keys_neither_deadlock_nor_invert(using: str):
    """Ids as they were given out under the lock are in the order of the numbers that were drawn under it."""
    numbers: dict[str, int] = {f"k{n}": 0 for n in range(5)}
    workers, rounds = 8, 15

    def write(worker: int) -> None:
        with another_alias(using) as alias:
            for turn in range(rounds):
                keys = sorted(numbers)[turn % 3 : turn % 3 + 3]
                with transaction.atomic(using=alias):
                    messages = [OutboxMessage(type="a", key=key, payload=0) for key in (*reversed(keys), "")]
                    enqueue_many(messages, using=alias, serialize=True)
                    for key in keys:
                        numbers[key] += 1
                        enqueue("b", numbers[key], key=key, using=alias, serialize=True)

    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(write, range(workers)))
    for key, count in numbers.items():
        table = OutboxMessage.objects.using(using).filter(type="b", key=key).order_by("id")
        assert [message.payload for message in table] == list(range(1, count + 1))


def test_however_many_keys_there_are_the_locks_are_few_and_in_one_order():
    slots = lock_slots({f"order-{n}" for n in range(50_000)} | {""})
    assert len(slots) == LOCK_SLOTS
    assert slots == sorted(slots)
