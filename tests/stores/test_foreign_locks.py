"""Row locks of other sessions: a claim passes over what they have locked, and a settlement never waits for them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connections, transaction
from django.test import override_settings

from django_outbox import OutboxMessage
from django_outbox.admin.operations import CANCEL, HOLD, RETRY_NOW
from django_outbox.stores import postgresql
from django_outbox.stores.claiming import Cursor
from django_outbox.stores.mysql import MySQLStore
from tests.conftest import ALIASES, LOCKING, MYSQL_AND_MARIADB
from tests.support.admin.tools import apply
from tests.support.databases import another_alias, isolation, someone_waits
from tests.support.messages import claim, claimed_ids, expecting_few, from_the_start, put, row, settle, store_of, write
from tests.support.publishers import Script
from tests.support.relay_threads import relays_in_threads
from tests.support.routers import ROUTERS
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)

locking = pytest.mark.parametrize("using", LOCKING)

IMPATIENCE: dict[str, dict[str, Any]] = {
    "postgresql": {"options": "-c lock_timeout=500"},
    "mysql": {"init_command": "SET SESSION innodb_lock_wait_timeout = 1"},
}
"""Options of a connection on which a statement that waits for a lock is an error."""

GATE = 7_305_201
"""The number of an advisory lock."""


@pytest.fixture
def relay(using: str) -> Iterator[str]:
    """A connection of a relay, on which a statement that waits for a lock is an error."""
    with another_alias(using, **IMPATIENCE[connections[using].vendor]) as alias:
        yield alias


@contextmanager
def held(using: str, ids: list[int]) -> Iterator[None]:
    """Hold messages in a transaction that stays open, and is rolled back at the end."""
    with another_alias(using) as operator, transaction.atomic(using=operator):
        assert OutboxMessage.objects.using(operator).filter(id__in=ids).hold() == len(ids)
        yield
        transaction.set_rollback(True, using=operator)


@locking
@pytest.mark.parametrize("cursor", [from_the_start, expecting_few])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_queue_ends_before_a_message_that_another_session_has_locked(
    using: str, relay: str, place: int, cursor: Callable[[], Cursor]
):
    first, other = write(using, 2, key="a"), write(using, 1, key="b")
    with held(using, [*first, *other][place : place + 1]):
        expected = (first[:place] if place < 2 else first) + (other if place < 2 else [])
        assert claimed_ids(relay, cursor=cursor()) == expected
    assert claimed_ids(relay, cursor=cursor()) == first + other


@locking
@pytest.mark.parametrize("waits", ["hold", "cancel", "retry_now"])
def test_a_settlement_waits_for_no_session_that_waits_for_its_messages(using: str, relay: str, waits: str):
    (id,), other = write(using, key="a"), write(using, 2, key="b")

    def operate() -> int:
        with another_alias(using) as operator:
            messages = OutboxMessage.objects.using(operator)
            changed: int = getattr(messages, waits)()
            return changed

    with ThreadPoolExecutor(1) as pool:
        with claim(relay) as batch:
            operation = pool.submit(operate)
            if waits != "retry_now":
                eventually(lambda: operation.done() or someone_waits(using))
            settle(relay, batch, processed=other, retried=[(id, "busy", 60.0)])
        changed = operation.result(60)
    if waits == "hold":
        assert (changed, row(using, id).is_held) == (1, True), "the settlement must not overwrite it"
    elif waits == "cancel":
        assert (changed, row(using, id).error) == (1, "cancelled by an operator")
    assert all(row(using, each).processed_at for each in other)


@pytest.mark.parametrize("using", ["postgresql"])
def test_postgresql_respects_a_change_between_its_snapshot_and_the_lock(using: str, monkeypatch: pytest.MonkeyPatch):
    waiting = f"pg_column_size(payload) + length(pg_advisory_xact_lock_shared({GATE})::text) AS stored"
    statement = postgresql.READ_PARTITIONS.replace(
        "pg_column_size(payload) AS stored FROM {table}\n", f"{waiting} FROM {{table}}\n"
    )
    assert waiting in statement
    first, other = write(using, 2, key="a"), write(using, 2, key="b")

    def claim_in_thread() -> list[int]:
        with another_alias(using) as alias:
            return claimed_ids(alias)

    with ThreadPoolExecutor(1) as pool:
        with another_alias(using) as operator, transaction.atomic(using=operator):
            store_of(operator).fetch(f"SELECT pg_advisory_xact_lock({GATE})")
            monkeypatch.setattr(postgresql, "READ_PARTITIONS", statement)
            claimed = pool.submit(claim_in_thread)
            eventually(lambda: someone_waits(using))
            OutboxMessage.objects.using(using).filter(id=first[0]).hold()
        assert claimed.result(60) == other


@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
def test_mysql_and_mariadb_respect_a_change_between_the_listing_and_the_lock(
    using: str, monkeypatch: pytest.MonkeyPatch
):
    first, other = write(using, 2, key="a"), write(using, 2, key="b")
    read = MySQLStore._read

    def hold_and_read(self: MySQLStore, ids: Any, *arguments: Any) -> Any:
        with another_alias(using) as operator:
            OutboxMessage.objects.using(operator).filter(id=first[0]).hold()
        return read(self, ids, *arguments)

    monkeypatch.setattr(MySQLStore, "_read", hold_and_read)
    assert claimed_ids(using) == other


@locking
def test_a_message_that_cannot_be_locked_leaves_its_room_to_others(using: str, relay: str):
    """Its bytes are those of the whole batch, which begins with it."""
    ids = sorted(put(2, using=using, keys=2, payload="x" * 50_000), key=lambda id: row(using, id).partition)
    with held(using, ids[:1]):
        assert claimed_ids(relay, max_bytes=50_000) == ids[1:]


@locking
@pytest.mark.parametrize("limit", [1, 20, 1000])
def test_claims_go_around_locked_keys_and_then_report_that_nothing_is_left(using: str, relay: str, limit: int):
    locked = put(60, using=using, keys=60)
    due = [id for number in range(20) for id in write(using, key=f"due-{number}")]
    cursor, found, claims = from_the_start(), [], 0
    with held(using, locked):
        while not cursor.exhausted:
            with claim(relay, cursor=cursor, limit=limit) as batch:
                ids = [message.id for message in batch.messages]
                settle(relay, batch, processed=ids)
            found += ids
            claims += 1
            assert claims < 500
    assert sorted(found) == due
    assert set(claimed_ids(relay)) <= set(locked)


@locking
@pytest.mark.parametrize("locked", [1, 60])
@pytest.mark.usefixtures("scripted")
def test_a_relay_delivers_the_other_keys_while_a_transaction_holds_messages(using: str, locked: int, scripted: Script):
    ids = put(locked, using=using, keys=locked)

    def processed(expected: list[int]) -> bool:
        return OutboxMessage.objects.using(using).processed().filter(id__in=expected).count() == len(expected)

    with relays_in_threads(using=using, workers=2, poll_interval=0.05) as start:
        with held(using, ids):
            start()
            for _ in range(5):
                written = [id for number in range(10) for id in write(using, key=f"other-{number}")]
                eventually(lambda: processed(written))  # noqa: B023
            assert not set(scripted.published()) & set(ids)
        eventually(lambda: processed(ids))
    published = scripted.published()
    assert len(published) == len(set(published)) == locked + 50


@pytest.mark.parametrize("using", MYSQL_AND_MARIADB)
@pytest.mark.parametrize("operation", [HOLD, RETRY_NOW, CANCEL], ids=lambda operation: operation.name)
@pytest.mark.parametrize("key", ["", "a"], ids=["no key", "key"])
def test_the_admin_locks_nothing_that_a_relay_delivers_under_serializable(
    using: str, relay: str, operation: Any, key: str, admin_user: User
):
    ids, later = write(using, 2, key=key), write(using, key="b", delay=3600)
    with another_alias(using, **isolation(using, "serializable")) as serializable, claim(relay) as batch:
        assert [message.id for message in batch.messages] == ids
        original, connections[using] = connections[using], connections[serializable]
        try:
            with override_settings(DATABASE_ROUTERS=ROUTERS[using]), transaction.atomic(using=using):
                assert apply(operation, [*ids, *later]).changed == 1
                settle(relay, batch, processed=ids[:1], retried=[(ids[1], "busy", 60.0)])
        finally:
            connections[using] = original
