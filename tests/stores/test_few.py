"""Claims of few messages on PostgreSQL: by prepared statements in a session that keeps them."""

import logging
import secrets
from collections.abc import Iterator

import pytest
from django.db import connections

from django_outbox import OutboxMessage
from django_outbox.stores.claiming import FEW, FEW_OF_KEY, Cursor
from tests.conftest import ALIASES
from tests.support.databases import another_alias
from tests.support.messages import claim, settle, write
from tests.support.pgbouncer import behind_pgbouncer

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)


@pytest.fixture
def using() -> Iterator[str]:
    with another_alias("postgresql") as alias:
        yield alias


def expecting_few() -> Cursor:
    """Return a cursor of a worker whose last claim has read everything."""
    cursor = Cursor(after=0)
    cursor.note_few([], [], steps=0, max_bytes=1)
    return cursor


def deliver(using: str, cursor: Cursor | None = None) -> tuple[list[int], bool]:
    """Claim and settle a batch; return its ids, and whether its statements were prepared."""
    with claim(using, cursor=cursor or expecting_few()) as batch:
        ids = [message.id for message in batch.messages]
        if ids:
            settle(using, batch, processed=ids)
    return ids, batch.mark is not None


def run(using: str, sql: str) -> list[tuple[object, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []


def test_keyed_and_unkeyed_messages_are_claimed_and_settled_together(using: str):
    keyed, unkeyed = write("postgresql", 1, key="a"), write("postgresql", 2)
    assert deliver(using) == ([*keyed, *unkeyed], True)
    assert OutboxMessage.objects.using(using).pending().count() == 0
    assert deliver(using) == ([], False)


def test_plans_are_kept(using: str):
    for _ in range(8):
        write("postgresql", key="a")
        assert deliver(using)[1]
    kept = run(using, "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE name ~ 'own|read|unkeyed'")
    assert kept == [(8, 0)] * 3


@pytest.mark.parametrize("reset", ["DISCARD ALL", "DEALLOCATE ALL", "DEALLOCATE outbox_read"])
def test_a_session_that_was_reset_is_claimed_from_without_an_error(using: str, reset: str):
    first = write("postgresql", key="a")
    assert deliver(using) == (first, True)
    run(using, reset)
    for _ in range(2):
        assert deliver(using) == ([], False)
        (id,) = write("postgresql", key="a")
        assert deliver(using) == ([id], False)


def test_statements_of_another_client_of_the_session_are_left_alone(using: str):
    run(using, "PREPARE outbox_due(text) AS SELECT 'of another client' WHERE $1 <> ''")
    ids = write("postgresql", key="a")
    assert deliver(using) == (ids, False)
    assert run(using, "EXECUTE outbox_due('x')") == [("of another client",)]


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_nothing_is_prepared_behind_a_pooler(mode: str):
    with behind_pgbouncer("postgresql", mode):
        for _ in range(3):
            ids = write("postgresql", 2, key="a")
            assert deliver("postgresql") == (ids, False)
            assert deliver("postgresql") == ([], False)
        assert run("postgresql", "SELECT name FROM pg_prepared_statements WHERE name LIKE 'outbox%'") == []


@pytest.mark.parametrize(
    ("keys", "count"),
    [(["a"], FEW_OF_KEY), ([""], FEW), ([f"key {number}" for number in range(FEW)], 1)],
    ids=["many of a key", "many without a key", "many keys"],
)
def test_a_claim_that_is_full_is_followed_by_an_ordinary_one(using: str, keys: list[str], count: int):
    for key in keys:
        write("postgresql", count, key=key)
    write("postgresql", 1, key=keys[0] if len(keys) == 1 else "another")
    cursor = expecting_few()
    ids, prepared = deliver(using, cursor)
    assert (len(ids), prepared, cursor.caught_up) == (len(keys) * count, True, False)
    ids, prepared = deliver(using, cursor)
    assert (len(ids), prepared, cursor.caught_up) == (1, False, True)


def test_a_claim_is_limited_in_bytes(using: str):
    ids = write("postgresql", 3, payload="x" * 1000) + write("postgresql", 1, key="a", payload="x" * 1000)
    cursor = expecting_few()
    with claim(using, cursor=cursor, max_bytes=2000) as batch:
        assert [message.id for message in batch.messages] == [ids[3], ids[0]]
    assert not cursor.caught_up


def test_a_key_that_was_read_up_to_its_share_of_the_bytes_may_have_more(using: str):
    ids = write("postgresql", 2, key="a", payload="x" * 1000)
    cursor = expecting_few()
    with claim(using, cursor=cursor, max_bytes=20_000) as batch:
        assert [message.id for message in batch.messages] == ids[:1]
    assert not cursor.caught_up


@pytest.mark.parametrize("using", ALIASES)
def test_the_same_holds_for_an_ordinary_claim(using: str):
    ids = write(using, 2, key="a", payload=secrets.token_hex(3000)) + write(using, 1, key="b")
    cursor = Cursor(after=0)
    with claim(using, cursor=cursor, max_bytes=10_000) as batch:
        assert [message.id for message in batch.messages] == [ids[0], ids[2]]
    assert not cursor.caught_up


def test_a_message_that_was_changed_meanwhile_is_left_as_it_is(using: str, caplog: pytest.LogCaptureFixture):
    (id,) = write("postgresql", key="a")
    with caplog.at_level(logging.ERROR, logger="django_outbox"), claim(using, cursor=expecting_few()) as batch:
        OutboxMessage.objects.using(using).filter(pk=id).delete()
        settle(using, batch, processed=[id])
    assert "1 of 1 claimed messages" in caplog.text
