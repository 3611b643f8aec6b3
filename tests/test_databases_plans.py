"""How the databases find their rows: with 50,000 due messages behind 100,000 that wait for a retry, and many processed.

The statements are those that the outbox runs, caught on the way.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_outbox import OutboxMessage
from django_outbox.databases import mysql, postgresql, sqlite
from tests.conftest import ALIASES
from tests.messages_tools import another_alias, claim, claimed_ids, database, settle

pytestmark = pytest.mark.django_db(databases=ALIASES)

LIMIT = 100
WAITING, IDLE, DUE, PROCESSED = 100_000, 10_000, 50_000, 20_000

PAYLOAD = json.dumps({"order": "x" * 300})

NUMBERS = {
    "default": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}) ",
    "postgresql": "",
    "mariadb": "",
}
SOURCE = {
    "default": "numbers",
    "postgresql": "generate_series(1, {count}) AS numbers(n)",
    "mariadb": "(SELECT seq AS n FROM seq_1_to_{count}) numbers",
}
UUID = {"default": "lower(hex(randomblob(16)))", "postgresql": "gen_random_uuid()", "mariadb": "uuid()"}
TIME = {
    "default": "strftime('%Y-%m-%d %H:%M:%f', 'now', '{seconds} seconds')",
    "postgresql": "statement_timestamp() + interval '{seconds} seconds'",
    "mariadb": "UTC_TIMESTAMP(6) + INTERVAL {seconds} SECOND",
}


def fill(using: str, count: int, *, column: str, seconds: int, publisher: str = "default") -> None:
    """Write many messages with one statement; `column` is the time that is set, so many seconds from now."""
    connection = connections[using]
    quote = connection.ops.quote_name
    columns = ["message_id", "type", "topic", quote("key"), "payload", "headers", "publisher", "attempts", "error"]
    time = TIME[using].format(seconds=seconds)
    others = sorted({"available_at", "processed_at", "failed_at"} - {column})
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {quote(OutboxMessage._meta.db_table)} "
            f"({', '.join([*columns, 'occurred_at', column, *others])}) {NUMBERS[using].format(count=count)}"
            f"SELECT {UUID[using]}, 'order.created', '', '', '{PAYLOAD}', '{{}}', '{publisher}', 0, '', "
            f"{time}, {time}, NULL, NULL "
            f"FROM {SOURCE[using].format(count=count)}"
        )


@pytest.fixture(scope="module", autouse=True)
def many_messages(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    table = OutboxMessage._meta.db_table
    tidy = {"default": "ANALYZE {}", "postgresql": "VACUUM ANALYZE {}", "mariadb": "ANALYZE TABLE {}"}
    clear = {"default": "DELETE FROM {}", "postgresql": "TRUNCATE {}", "mariadb": "TRUNCATE {}"}
    with django_db_blocker.unblock():
        try:
            for using in ALIASES:
                fill(using, WAITING, column="available_at", seconds=86_400)
                fill(using, IDLE, column="available_at", seconds=86_400, publisher="idle")
                fill(using, PROCESSED, column="processed_at", seconds=-86_400)
                fill(using, DUE, column="available_at", seconds=-3600)
                run(using, tidy[using].format(table))
            yield
        finally:
            for using in ALIASES:
                run(using, clear[using].format(table))


def run(using: str, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


def caught(using: str, action: Any, beginning: str) -> str:
    """The first statement, with its parameters filled in, that the action runs and that begins so."""
    with CaptureQueriesContext(connections[using]) as queries:
        action()
    sql, *_ = [q["sql"].strip() for q in queries.captured_queries if q["sql"].strip().startswith(beginning)]
    return str(sql)


def claim_sql(using: str, publisher: str = "default") -> str:
    return caught(using, lambda: claimed_ids(using, publisher, limit=LIMIT), "SELECT id")


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Every part of a plan in JSON that is an object."""
    if isinstance(plan, dict):
        yield plan
        for value in plan.values():
            yield from nodes(value)
    elif isinstance(plan, list):
        for value in plan:
            yield from nodes(value)


def postgresql_plan(sql: str) -> list[dict[str, Any]]:
    ((plan,),) = run("postgresql", "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + sql.replace("%", "%%"))
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return [node for node in nodes(plan) if "Node Type" in node]


def removed(scan: dict[str, Any]) -> int:
    """How many rows were read in vain."""
    return sum(value for name, value in scan.items() if name.startswith("Rows Removed"))


def mariadb_plan(sql: str, how: str = "ANALYZE") -> list[dict[str, Any]]:
    ((plan,),) = run("mariadb", f"{how} FORMAT=JSON {sql.replace('%', '%%')}")
    return list(nodes(json.loads(plan)))


def sqlite_plan(sql: str, params: Any = ()) -> list[str]:
    return [row[-1] for row in run("default", "EXPLAIN QUERY PLAN " + sql, params)]


class TestClaim:
    def test_postgresql_reads_as_many_rows_as_it_takes(self):
        plan = postgresql_plan(claim_sql("postgresql"))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "outbox_pending")
        assert scan["Actual Rows"] == LIMIT
        assert removed(scan) == 0
        assert all(node["Actual Rows"] <= LIMIT for node in plan)
        assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] < 20 * LIMIT

    def test_postgresql_reads_none_of_the_waiting_when_nothing_is_due(self):
        (scan,) = [node for node in postgresql_plan(claim_sql("postgresql", "idle")) if "Relation Name" in node]
        assert (scan["Index Name"], scan["Actual Rows"]) == ("outbox_pending", 0)
        assert removed(scan) == 0

    def test_mariadb_reads_as_many_rows_as_it_takes(self):
        plan = mariadb_plan(claim_sql("mariadb"))
        (table,) = [node for node in plan if "table_name" in node]
        # `r_rows` leaves out what the index itself refuses, so that the time must be part of the range.
        assert (table["key"], table["access_type"]) == ("outbox_pending", "range")
        assert table["used_key_parts"] == ["publisher", "available_at"]
        assert table["r_rows"] <= LIMIT + 1
        assert table["r_filtered"] == 100
        assert not any("filesort" in node or "temporary_table" in node for node in plan)

    def test_mariadb_reads_none_of_the_waiting_when_nothing_is_due(self):
        (table,) = [node for node in mariadb_plan(claim_sql("mariadb", "idle")) if "table_name" in node]
        assert (table["key"], table["used_key_parts"]) == ("outbox_pending", ["publisher", "available_at"])
        assert table["r_rows"] == 0

    def test_sqlite_follows_the_index(self):
        plan = sqlite_plan(claim_sql("default"))
        (search,) = [step for step in plan if "outbox_pending" in step]
        assert search.startswith("SEARCH django_outbox_outboxmessage USING INDEX outbox_pending (publisher=? AND avail")
        # Only what was found is sorted again; the search itself comes in order, or it would sort all that is due.
        assert "USE TEMP B-TREE FOR ORDER BY" not in plan[: plan.index(search) + 2]
        assert not any(step.startswith("SCAN django_outbox") for step in plan)

    def test_sqlite_leases_by_the_primary_key(self):
        plan = sqlite_plan(table(sqlite.LEASE), [60, "[]"])
        assert "SEARCH django_outbox_outboxmessage USING INTEGER PRIMARY KEY (rowid=?)" in plan


def table(sql: str) -> str:
    return sql.replace("{table}", OutboxMessage._meta.db_table)


SETTLEMENTS: list[Any] = [
    lambda ids: {"processed": ids},
    lambda ids: {"processed": ids, "delete_processed": True},
    lambda ids: {"failed": [(id, "no") for id in ids]},
    lambda ids: {"retried": [(id, "no", 1.0) for id in ids]},
]


@pytest.mark.parametrize("settlement", SETTLEMENTS, ids=["processed", "deleted", "failed", "retried"])
class TestSettle:
    def settle_sql(self, using: str, settlement: Any) -> str:
        with claim(using, limit=LIMIT) as batch, CaptureQueriesContext(connections[using]) as queries:
            settle(using, batch, **settlement([message.id for message in batch.messages]))
        (query,) = queries.captured_queries
        return str(query["sql"]).strip()

    def test_postgresql_finds_each_row_by_the_primary_key(self, settlement: Any):
        plan = postgresql_plan(self.settle_sql("postgresql", settlement))
        scans = [node for node in plan if "Relation Name" in node and "Scan" in node["Node Type"]]
        assert {scan.get("Index Name") for scan in scans} <= {"django_outbox_outboxmessage_pkey", None}
        assert not any(scan["Node Type"] == "Seq Scan" for scan in scans)

    def test_mariadb_finds_each_row_by_the_primary_key(self, settlement: Any):
        plan = mariadb_plan(self.settle_sql("mariadb", settlement), "EXPLAIN")
        (found,) = [node for node in plan if "table_name" in node and node["table_name"] != "settled"]
        assert found["key"] == "PRIMARY"
        assert found["access_type"] in {"eq_ref", "range"}


@pytest.mark.parametrize("name", ["PROCESSED", "DELETED", "FAILED", "RETRIED", "RELEASED"])
def test_sqlite_settles_each_row_by_the_primary_key(name: str):
    plan = sqlite_plan(table(getattr(sqlite, name)), ["[]", "2026"])
    assert "SEARCH django_outbox_outboxmessage USING INTEGER PRIMARY KEY (rowid=?)" in plan


class TestPurge:
    def test_postgresql(self):
        sql = caught("postgresql", lambda: database("postgresql").purge(3600, LIMIT), "DELETE")
        scans = [node for node in postgresql_plan(sql) if "Index Name" in node]
        assert {"outbox_processed", "django_outbox_outboxmessage_pkey"} == {scan["Index Name"] for scan in scans}
        assert all(scan["Actual Rows"] <= LIMIT for scan in scans)

    def test_mariadb(self):
        sql = caught("mariadb", lambda: database("mariadb").purge(3600, LIMIT), "SELECT")
        (found,) = [node for node in mariadb_plan(sql) if "table_name" in node]
        assert found["key"] == "outbox_processed"
        assert found["r_rows"] <= LIMIT

    def test_sqlite(self):
        plan = sqlite_plan(table(sqlite.PURGE), [-3600, LIMIT])
        assert any("USING COVERING INDEX outbox_processed" in step for step in plan)
        assert not any("TEMP B-TREE" in step for step in plan)


def test_the_backlog_of_postgresql_is_read_from_the_index_alone():
    with another_alias("postgresql") as alias:
        # Where few rows are dead, VACUUM would leave their index entries, and not mark their pages as visible to all.
        run(alias, f"VACUUM (INDEX_CLEANUP ON) {OutboxMessage._meta.db_table}")
    backlog = OutboxMessage.objects.using("postgresql").backlog()
    plan = postgresql_plan(caught("postgresql", lambda: list(backlog), "SELECT"))
    (scan,) = [node for node in plan if "Relation Name" in node]
    assert (scan["Node Type"], scan["Index Name"], scan["Heap Fetches"]) == ("Index Only Scan", "outbox_pending", 0)
    assert {found["publisher"]: found["count"] for found in backlog} == {"default": WAITING + DUE, "idle": IDLE}


def test_the_statements_are_those_of_the_modules():
    """Guards the tests above: what they catch is what the modules hold."""
    assert "SKIP LOCKED" in claim_sql("postgresql")
    assert "SKIP LOCKED" in claim_sql("mariadb")
    assert postgresql.CLAIM.strip().startswith("SELECT id")
    assert mysql.LOCK.strip().startswith("SELECT id")
    assert sqlite.DUE.strip().startswith("SELECT id")
