"""How the databases find their rows: with 50,000 due messages behind 100,000 that wait for a retry, and many processed.

Beside them are 60,000 of 200 keys, each as deep as the other, and as many processed.

The statements are those that the outbox runs, caught on the way.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_outbox import OutboxMessage
from django_outbox.databases import mysql, postgresql, sqlite
from django_outbox.databases.partitions import MANY_PARTITIONS
from tests.conftest import ALIASES
from tests.messages_tools import another_alias, claim, claimed_ids, database, settle

pytestmark = pytest.mark.django_db(databases=ALIASES)

LIMIT = 100
WAITING, IDLE, DUE, PROCESSED = 100_000, 10_000, 50_000, 20_000
KEYED, KEYS = 60_000, 200

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


def fill(using: str, count: int, *, column: str, seconds: int, publisher: str = "default", keys: int = 0) -> None:
    """Write many messages with one statement; `column` is the time that is set, so many seconds from now."""
    key = f"'key', 1 + n % {keys}" if keys else "'', 0"
    connection = connections[using]
    quote = connection.ops.quote_name
    columns = ["message_id", "type", "topic", quote("key"), quote("partition"), "payload", "headers", "publisher"]
    columns += ["attempts", "error", "error_class"]
    time = TIME[using].format(seconds=seconds)
    others = sorted({"available_at", "processed_at", "failed_at"} - {column})
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {quote(OutboxMessage._meta.db_table)} "
            f"({', '.join([*columns, 'occurred_at', column, *others])}) {NUMBERS[using].format(count=count)}"
            f"SELECT {UUID[using]}, 'order.created', '', {key}, '{PAYLOAD}', '{{}}', '{publisher}', 0, '', '', "
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
                fill(using, KEYED, column="processed_at", seconds=-86_400, publisher="keyed", keys=KEYS)
                fill(using, KEYED, column="available_at", seconds=-3600, publisher="keyed", keys=KEYS)
                run(using, tidy[using].format(table))
            yield
        finally:
            for using in ALIASES:
                run(using, clear[using].format(table))


def run(using: str, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


def caught(using: str, action: Any, beginning: str, part: str = "") -> str:
    """The first statement, with its parameters filled in, that the action runs, that begins so and has this part."""
    with CaptureQueriesContext(connections[using]) as queries:
        action()
    statements = [str(query["sql"]).strip() for query in queries.captured_queries]
    sql, *_ = [sql for sql in statements if sql.startswith(beginning) and part in sql]
    return sql


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
        assert table["used_key_parts"] == ["publisher", "partition", "available_at"]
        assert table["r_rows"] <= LIMIT + 1
        assert table["r_filtered"] == 100
        assert not any("filesort" in node or "temporary_table" in node for node in plan)

    def test_mariadb_reads_none_of_the_waiting_when_nothing_is_due(self):
        (table,) = [node for node in mariadb_plan(claim_sql("mariadb", "idle")) if "table_name" in node]
        assert (table["key"], table["used_key_parts"]) == ("outbox_pending", ["publisher", "partition", "available_at"])
        assert table["r_rows"] == 0

    def test_sqlite_follows_the_index(self):
        plan = sqlite_plan(claim_sql("default"))
        (search,) = [step for step in plan if "outbox_pending" in step]
        assert "outbox_pending (publisher=? AND partition=? AND avail" in search
        # Only what was found is sorted again; the search itself comes in order, or it would sort all that is due.
        assert "USE TEMP B-TREE FOR ORDER BY" not in plan[: plan.index(search) + 2]
        assert not any(step.startswith("SCAN django_outbox") for step in plan)

    def test_sqlite_leases_by_the_primary_key(self):
        plan = sqlite_plan(table(sqlite.LEASE), [60, "[]"])
        assert "SEARCH django_outbox_outboxmessage USING INTEGER PRIMARY KEY (rowid=?)" in plan


class TestKeys:
    """Neither the depth of a key nor what is processed is walked through on the way to the next key."""

    def test_postgresql_takes_one_probe_of_the_index_for_each_key(self):
        plan = postgresql_plan(keyed_sql("postgresql", "WITH RECURSIVE head"))
        scans = [node for node in plan if "Relation Name" in node]
        assert {scan["Index Name"] for scan in scans} == {"outbox_partitions"}
        assert all(removed(scan) == 0 for scan in scans)
        assert "> head" in scans[-1]["Index Cond"]
        assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] < 10 * MANY_PARTITIONS

    def test_postgresql_reads_no_more_of_a_key_than_it_takes(self):
        plan = postgresql_plan(keyed_sql("postgresql", "SELECT", "unnest", limit=5 * MANY_PARTITIONS))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert scan["Index Name"] == "outbox_partitions"
        assert (scan["Actual Rows"], scan["Actual Loops"], removed(scan)) == (5, MANY_PARTITIONS, 0)

    @pytest.mark.parametrize(
        ("first_stretch", "most"),
        [
            pytest.param(512, KEYED // KEYS * MANY_PARTITIONS + 4096, id="shallow keys are read through"),
            pytest.param(128, 128 + 8 * MANY_PARTITIONS, id="deep keys are jumped over"),
        ],
    )
    def test_mariadb_reads_a_bounded_number_of_rows_for_each_key(
        self, monkeypatch: pytest.MonkeyPatch, first_stretch: int, most: int
    ):
        monkeypatch.setattr(mysql, "FIRST_STRETCH", first_stretch)
        with CaptureQueriesContext(connections["mariadb"]) as queries:
            claimed_ids("mariadb", "keyed", limit=MANY_PARTITIONS)
        walks = [query["sql"] for query in queries if query["sql"].strip().startswith("SELECT message.`partition`")]
        assert walks
        rows = 0
        for walk in walks:
            scans = {node["table_name"]: node for node in mariadb_plan(walk) if "table_name" in node}
            stretch = scans[OutboxMessage._meta.db_table]
            assert (stretch["key"], stretch["used_key_parts"]) == (
                "outbox_partitions",
                ["processed_at", "publisher", "partition"],
            )
            assert stretch["using_index"]
            assert (scans["message"]["key"], scans["message"]["r_rows"]) == ("PRIMARY", 1)
            rows += stretch["r_rows"]
        assert rows <= most

    def test_mariadb_reads_no_more_followers_than_it_takes(self):
        plan = mariadb_plan(keyed_sql("mariadb", "WITH RECURSIVE behind", limit=5 * MANY_PARTITIONS))
        (scan,) = [node for node in plan if node.get("table_name") == "next"]
        assert scan["key"] == "outbox_partitions"
        assert scan["r_rows"] <= 5

    @pytest.mark.parametrize(
        ("beginning", "bounds"),
        [
            ("WITH RECURSIVE head", "(publisher=? AND partition>?)"),
            ("WITH RECURSIVE behind", "(publisher=? AND partition=? AND id>?)"),
        ],
    )
    def test_sqlite_takes_one_probe_of_the_index_for_each_row(self, beginning: str, bounds: str):
        plan = sqlite_plan(keyed_sql("default", beginning, limit=5 * MANY_PARTITIONS))
        searches = [step for step in plan if "outbox_partitions" in step]
        assert searches
        assert all(bounds in search for search in searches)
        assert not any(step.startswith("SCAN django_outbox") for step in plan)

    def test_sqlite_begins_each_probe_behind_the_key_before(self):
        """Of two lower bounds its planner takes the first: the other one would begin at the first key each time."""
        assert re.search(r"partition > (%s|head\.partition) AND partition > 0", sqlite.HEADS)


def keyed_sql(using: str, beginning: str, part: str = "", limit: int = MANY_PARTITIONS) -> str:
    return caught(using, lambda: claimed_ids(using, "keyed", limit=limit), beginning, part)


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
        (found,) = [node for node in plan if node.get("table_name") not in {None, "settled", "done"}]
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
    expected = {"default": WAITING + DUE, "idle": IDLE, "keyed": KEYED}
    assert {found["publisher"]: found["count"] for found in backlog} == expected


def test_the_statements_are_those_of_the_modules():
    """Guards the tests above: what they catch is what the modules hold."""
    assert "SKIP LOCKED" in claim_sql("postgresql")
    assert "SKIP LOCKED" in caught("mariadb", lambda: claimed_ids("mariadb", limit=LIMIT), "SELECT id", "PRIMARY")
    assert postgresql.UNKEYED.strip().startswith("SELECT id")
    assert mysql.UNKEYED.strip().startswith("SELECT id")
    assert sqlite.UNKEYED.strip().startswith("SELECT id")
