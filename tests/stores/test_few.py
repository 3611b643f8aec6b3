"""Claims of few messages: by prepared statements on PostgreSQL, after a look on MySQL, MariaDB and SQLite."""

import logging
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_outbox import OutboxMessage
from django_outbox.stores import ClaimRequest
from django_outbox.stores.claiming import FEW, FEW_OF_KEY, Cursor
from tests.conftest import ALIASES, MYSQL_AND_MARIADB
from tests.support.databases import another_alias
from tests.support.messages import claim, claimed_ids, expecting_few, settle, store_of, write
from tests.support.pgbouncer import behind_pgbouncer

pytestmark = pytest.mark.django_db(databases=ALIASES, transaction=True)


@pytest.fixture
def using() -> Iterator[str]:
    with another_alias("postgresql") as alias:
        yield alias


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


def test_a_look_comes_first_unless_the_claim_will_probably_find_something(using: str):
    cursor = expecting_few()

    def statements(due: int, *, announced: bool = False) -> str:
        """Return the first letters of the statements that claim a number of messages."""
        write("postgresql", due, key="a")
        if announced:
            cursor.announce()
        with CaptureQueriesContext(connections[using]) as captured:
            assert len(deliver(using, cursor)[0]) == due
        return "".join(
            name[0]
            for each in captured.captured_queries
            for name in re.findall(r"EXECUTE outbox_(due|own)", each["sql"])
        )

    look, claim, both = "d", "o", "do"
    statements(0)
    assert [statements(1), statements(0), statements(0)] == [both, claim, look]
    # Nothing followed the last find, so a look comes first behind each, until one finds something.
    assert [statements(1, announced=True), statements(0)] == [claim, look]
    assert [statements(1, announced=True), statements(1)] == [claim, both]
    assert [statements(1), statements(0)] == [claim, claim]


def test_a_wake_up_causes_no_claim_of_an_empty_table_if_there_is_a_stream(using: str):
    cursor = expecting_few()
    assert deliver(using, cursor) == ([], False)
    cursor.announce()
    ((passed,),) = run(using, "SELECT pg_current_snapshot()::text")
    with CaptureQueriesContext(connections[using]) as captured, claim(using, cursor=cursor, passed=passed) as batch:
        assert batch.messages == []
    assert [each["sql"] for each in captured.captured_queries if "outbox_due" not in each["sql"]] == []


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


mysql_and_mariadb = pytest.mark.parametrize("using", MYSQL_AND_MARIADB)

after_a_look = pytest.mark.parametrize("using", [*MYSQL_AND_MARIADB, "default"])
"""Where a look without a transaction lists the few messages."""


@contextmanager
def counted(using: str) -> Iterator[list[str]]:
    """Yield the statements of a session until the end of the block, without those of transactions."""
    statements: list[str] = []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        statements.append(sql)
        return execute(sql, *arguments)

    with connections[using].execute_wrapper(note):
        yield statements


def first_words(statements: list[str]) -> str:
    return " ".join(sql.split()[0].strip("(") for sql in statements)


STATEMENTS = {
    "mysql": ("SELECT SELECT UPDATE", "SELECT SELECT UPDATE"),
    "sqlite": ("SELECT BEGIN UPDATE INSERT BEGIN UPDATE DELETE", "SELECT BEGIN UPDATE BEGIN UPDATE"),
}
"""The statements of a claim and of its settlement, with and without a key."""


@after_a_look
@pytest.mark.parametrize("key", ["a", ""], ids=["with a key", "without a key"])
def test_a_few_messages_take_a_look_and_the_fewest_statements(using: str, key: str):
    cursor = expecting_few()
    for _ in range(2):
        (id,) = write(using, key=key)
        with counted(using) as statements, claim(using, cursor=cursor) as batch:
            settle(using, batch, processed=[id])
    expected = STATEMENTS[connections[using].vendor][not key]
    assert first_words(statements) == expected
    with counted(using) as statements:
        assert claimed_ids(using, cursor=cursor) == []
    assert len(statements) == 1


@mysql_and_mariadb
def test_on_mysql_a_claim_for_handlers_takes_a_look_too_and_sets_limits_of_its_own(using: str):
    cursor = expecting_few()
    # The first claim adds the locks.
    for _ in range(2):
        (id,) = write(using, key="a")
        with counted(using) as statements, claim(using, cursor=cursor, transactional=True, limit=20) as batch:
            settle(using, batch, processed=[id])
    assert first_words(statements) == "SELECT SET SELECT UPDATE SET"
    with counted(using) as statements:
        assert claimed_ids(using, cursor=cursor, transactional=True, limit=20) == []
    assert first_words(statements) == "SELECT"


@mysql_and_mariadb
def test_on_mysql_a_claim_keeps_its_limits_until_the_session_is_restored(using: str):
    def isolation() -> str:
        name = "tx_isolation" if store_of(using).dialect.is_mariadb else "transaction_isolation"
        return str(run(using, f"SELECT @@{name}")[0][0])

    run(using, "SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    claimed_ids(using)
    with counted(using) as statements, claim(using) as batch:
        assert batch.messages == []
        assert isolation() == "READ-COMMITTED"
    assert not [sql for sql in statements if sql.startswith("SET")]
    store_of(using).restore_session()
    assert isolation() == "SERIALIZABLE"


@mysql_and_mariadb
def test_on_mysql_a_first_claim_of_few_messages_adds_the_locks(using: str):
    ids = write(using, 2, key="a")
    store_of(using).execute("DELETE FROM {locks}")
    assert claimed_ids(using, cursor=expecting_few()) == ids


@after_a_look
@pytest.mark.parametrize(
    ("written", "limits", "expected"),
    [
        ({"count": FEW * FEW_OF_KEY, "key": "a"}, {}, FEW * FEW_OF_KEY),
        ({"count": FEW}, {}, FEW),
        ({"count": 3, "payload": "x" * 1000}, {"max_bytes": 2000}, 2),
        ({"count": 3}, {"limit": 2}, 2),
    ],
    ids=["many with a key", "many without a key", "large ones", "more than a batch"],
)
def test_many_or_large_messages_are_claimed_as_usual(
    using: str, written: dict[str, Any], limits: dict[str, Any], expected: int
):
    ids = write(using, **written)
    with counted(using) as statements:
        assert claimed_ids(using, cursor=expecting_few(), **limits) == ids[:expected]
    assert len(statements) > 3


@pytest.mark.parametrize("using", ["default"])
def test_on_sqlite_a_message_that_changes_after_the_look_is_left_out(using: str, monkeypatch: pytest.MonkeyPatch):
    first, other = write(using, 2, key="a"), write(using, 1, key="b")
    find_few = ClaimRequest.find_few

    def hold_after_the_look(self: ClaimRequest, look: Any) -> Any:
        found = find_few(self, look)
        OutboxMessage.objects.using(using).filter(pk=first[0]).hold()
        return found

    monkeypatch.setattr(ClaimRequest, "find_few", hold_after_the_look)
    assert claimed_ids(using, cursor=expecting_few()) == other


@pytest.mark.parametrize("using", ALIASES)
def test_a_key_that_another_relay_has_is_left_to_it(using: str):
    first = write(using, key="a")
    with another_alias(using) as relay, claim(relay, cursor=expecting_few()) as batch:
        later, other = write(using, key="a"), write(using, key="b")
        assert claimed_ids(using, cursor=expecting_few()) == other
        settle(relay, batch, processed=first)
    assert claimed_ids(using, cursor=expecting_few()) == later + other
