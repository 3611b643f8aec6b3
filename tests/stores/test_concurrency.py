"""Several relays and many callers at once, each in its own process or on its own connection."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import pytest
from django.db import DatabaseError, OperationalError, connections, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many
from django_outbox.db.errors import shows_conflict
from django_outbox.stores import Store
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.databases import another_alias, isolation, serialization_error
from tests.support.messages import claim, claimed_ids, rows, settle, store_of, write
from tests.support.spawning import process, receive
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

MESSAGES = 1500
CLAIMERS = 3

locking = pytest.mark.parametrize("using", LOCKING)
mysql_and_mariadb = pytest.mark.parametrize("using", MYSQL_AND_MARIADB)


def claim_all(pipe: Connection, using: str) -> None:
    """Settle small batches until nothing is pending, and send the ids of their messages."""
    pipe.send("ready")
    pipe.recv()
    claimed = []
    while OutboxMessage.objects.using(using).pending().exists():
        with claim(using, limit=40) as batch:
            ids = [message.id for message in batch.messages]
            settle(using, batch, processed=ids[::2], failed=[(id, "no") for id in ids[1::2]])
        claimed += ids
    pipe.send(claimed)


def hold(pipe: Connection, using: str, max_seconds: float) -> None:
    """Claim the due messages and never release them."""
    with claim(using, max_seconds=max_seconds) as batch:
        pipe.send([message.id for message in batch.messages])
        pipe.recv()


IMPATIENCE = {
    "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    "postgresql": "SET lock_timeout = '1s'",
    "sqlite": "PRAGMA busy_timeout = 1000",
}


@locking
@pytest.mark.parametrize("key", ["", "a"], ids=["no key", "keys"])
@pytest.mark.parametrize(
    "settlement",
    [
        lambda ids: {"processed": ids},
        lambda ids: {"processed": ids, "delete_processed": True},
        lambda ids: {"failed": [(id, "no") for id in ids]},
        lambda ids: {"retried": [(id, "no", 1.0) for id in ids]},
    ],
    ids=["processed", "deleted", "failed", "retried"],
)
def test_no_relay_waits_for_messages_that_another_has_claimed(using: str, key: str, settlement: Any):
    """If a statement locked more rows than its own, two relays would end in a deadlock."""
    for number in range(20):
        write(using, key=key and f"{key}{number}")
    with another_alias(using) as other:
        for alias in (using, other):
            with connections[alias].cursor() as cursor:
                cursor.execute(IMPATIENCE[connections[alias].vendor])
        with claim(using, limit=10) as first, claim(other, limit=10) as second:
            assert len(first.messages) == 10
            # The first claim leaves a slot to others that lies between its own; the second begins with that one.
            assert len(second.messages) >= 8
            for alias, batch in ((using, first), (other, second)):
                settle(alias, batch, **settlement([message.id for message in batch.messages]))
    connections[using].close()


def test_every_message_is_claimed_exactly_once_while_inserts_go_on(using: str):
    with transaction.atomic(using=using):
        enqueue_many((OutboxMessage(type="a", payload=n) for n in range(MESSAGES)), using=using)
    with ExitStack() as stack:
        target = "tests.stores.test_concurrency.claim_all"
        pipes = [stack.enter_context(process(target, using))[1] for _ in range(CLAIMERS)]
        for pipe in pipes:
            assert receive(pipe) == "ready"
        for pipe in pipes:
            pipe.send("go")
        for _ in range(50):
            write(using)
        claimed = [receive(pipe) for pipe in pipes]
    everything = [id for ids in claimed for id in ids]
    # The claimers may have been done before the last insert came.
    with claim(using) as batch:
        late = [message.id for message in batch.messages]
        settle(using, batch, processed=late)
    assert sorted(everything + late) == sorted(rows(using))
    assert len(everything) >= MESSAGES
    assert all(message["attempts"] == 1 for message in rows(using).values())


def test_the_batch_of_a_killed_relay_is_claimed_by_another(using: str):
    """At once if a claim is a transaction; on SQLite when the lease has expired."""
    ids = write(using, 3)
    lease = 5.0 if using == "default" else 3600.0
    with process("tests.stores.test_concurrency.hold", using, lease) as (child, pipe):
        assert receive(pipe) == ids
        assert claimed_ids(using) == []
        child.kill()
        assert eventually(lambda: claimed_ids(using)) == ids
    assert all(message["attempts"] == 0 for message in rows(using).values())


@pytest.mark.parametrize("using", ["postgresql"])
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_claim_is_read_committed_whatever_the_isolation_level_of_the_alias(using: str, level: str):
    def current() -> str:
        with connections[alias].cursor() as cursor:
            cursor.execute("SHOW transaction_isolation")
            return str(cursor.fetchone()[0])

    write(using)
    with another_alias(using, **isolation(using, level)) as alias:
        with claim(alias) as batch:
            assert len(batch.messages) == 1
            assert current() == "read committed"
        with transaction.atomic(using=alias):
            assert current() == level


@mysql_and_mariadb
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_claim_blocks_no_insert_whatever_the_isolation_level_of_the_alias(using: str, impatient: str, level: str):
    with another_alias(using, **isolation(using, level)) as alias, ExitStack() as stack:
        # The alias keeps its own level for what is not a claim.
        stack.enter_context(transaction.atomic(using=alias))
        assert not OutboxMessage.objects.using(alias).filter(available_at__gt="2000-01-01T00:00Z").select_for_update()
        with pytest.raises(OperationalError, match="Lock wait timeout"):
            write(impatient)
        stack.close()
        with claim(alias):
            write(impatient)


@locking
def test_the_database_takes_a_batch_back_from_a_relay_that_hangs(using: str):
    ids = write(using, 2)
    with another_alias(using) as frozen:
        held = claim(frozen, max_seconds=3)
        held.__enter__()
        assert claimed_ids(using) == []
        assert eventually(lambda: claimed_ids(using)) == ids
        with pytest.raises(DatabaseError):
            held.__exit__(None, None, None)


@locking
@pytest.mark.parametrize("max_seconds", [1.0, 86_400 * 364.0])
def test_any_claim_timeout_of_the_settings_is_accepted(using: str, max_seconds: float):
    assert claimed_ids(using, max_seconds=max_seconds) == []


@pytest.fixture
def impatient(using: str) -> Iterator[str]:
    """A connection that waits for locks for only one second."""
    with another_alias(using) as alias:
        with connections[alias].cursor() as cursor:
            cursor.execute(IMPATIENCE[connections[alias].vendor])
        yield alias


@pytest.mark.parametrize("pending", [0, 3])
def test_neither_an_empty_poll_nor_an_open_claim_blocks_an_insert(using: str, impatient: str, pending: int):
    write(using, pending)
    with claim(using) as batch:
        assert len(batch.messages) == pending
        write(impatient)
        write(impatient, message_id=uuid.uuid4())
        with transaction.atomic(using=impatient):
            enqueue_many([OutboxMessage(type="a", payload=1)], using=impatient)


@locking
@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
def test_a_duplicate_that_the_snapshot_does_not_show_is_found(using: str, level: str):
    error = serialization_error(using, level)
    expected: Any = pytest.raises(OperationalError, match=error) if error else ExitStack()
    id = uuid.uuid4()
    with another_alias(using, **isolation(using, level)) as alias, expected as raised, transaction.atomic(using=alias):
        assert OutboxMessage.objects.using(alias).count() == 0
        (first,) = write(using, message_id=id)
        assert enqueue("test.written", 2, message_id=id, using=alias).pk == first
        enqueue("after", 3, using=alias)
    assert not error or shows_conflict(raised.value)
    assert first in rows(using)


def test_a_duplicate_is_written_if_the_first_message_is_deleted_meanwhile(using: str, monkeypatch: pytest.MonkeyPatch):
    id = uuid.uuid4()
    (first,) = write(using, message_id=id)
    kind = type(store_of(using))
    insert = kind.insert

    def insert_and_lose(store: Store, rows: Any) -> None:
        insert(store, rows)
        monkeypatch.undo()
        OutboxMessage.objects.using(using).filter(pk=first).delete()

    monkeypatch.setattr(kind, "insert", insert_and_lose)
    (again,) = write(using, message_id=id)
    assert again != first
    assert list(rows(using)) == [again]
