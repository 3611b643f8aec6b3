"""The databases' query plans, with 25,000 due messages behind 50,000 that wait for a retry, and many processed.

Beside them are 30,000 of 200 keys, each as deep as the other, and as many processed.

The statements are those that the outbox runs, caught on the way.
"""

import datetime
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connections, transaction
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_outbox import OutboxMessage
from django_outbox.stores import mysql, postgresql, sqlite
from django_outbox.stores.claiming import FEW, FEW_IN_ALL, FEW_OF_KEY, MANY_PARTITIONS, SLOT_SIZE
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.prepared import prepare
from tests.conftest import ALIASES, MYSQL_AND_MARIADB
from tests.support.databases import another_alias
from tests.support.many_rows import TABLE, from_now, insert_rows
from tests.support.messages import claim, claimed_ids, settle, store_of

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.slow]

mysql_and_mariadb = pytest.mark.parametrize("using", MYSQL_AND_MARIADB)

LIMIT = 100
WAITING, IDLE, DUE, PROCESSED = 50_000, 5_000, 25_000, 10_000
KEYED, KEYS = 30_000, 200
PARTITIONS = [SLOT_SIZE * (1 + number) for number in range(KEYS)]

PAYLOAD = json.dumps({"order": "x" * 300})

TIDY = {"sqlite": "ANALYZE {}", "postgresql": "VACUUM ANALYZE {}", "mysql": "ANALYZE TABLE {}"}
CLEAR = {"sqlite": "DELETE FROM {}", "postgresql": "TRUNCATE {}", "mysql": "TRUNCATE {}"}


def fill(using: str, count: int, *, column: str, seconds: int, publisher: str = "default", keys: int = 0) -> None:
    """Write many messages; `column` is the time to set, in seconds from now."""
    columns = {"publisher": f"'{publisher}'", "payload": f"'{PAYLOAD}'"}
    if keys:
        # Each key has a slot of its own.
        columns["key"], columns["partition"] = "'key'", f"{SLOT_SIZE} * (1 + n % {keys})"
        columns["blocks_key"] = str(column == "available_at").lower()
    time = from_now(using, seconds)
    insert_rows(using, count, occurred_at=time, **columns, **{column: time})


@pytest.fixture(scope="module", autouse=True)
def many_messages(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        try:
            for using in ALIASES:
                fill(using, WAITING, column="available_at", seconds=86_400)
                fill(using, IDLE, column="available_at", seconds=86_400, publisher="idle")
                fill(using, PROCESSED, column="processed_at", seconds=-86_400)
                fill(using, DUE, column="available_at", seconds=-3600)
                fill(using, KEYED, column="processed_at", seconds=-86_400, publisher="keyed", keys=KEYS)
                fill(using, KEYED, column="available_at", seconds=-3600, publisher="keyed", keys=KEYS)
                run(using, TIDY[connections[using].vendor].format(TABLE))
            yield
        finally:
            for using in ALIASES:
                run(using, CLEAR[connections[using].vendor].format(TABLE))


def run(using: str, sql: str, params: Any = ()) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return cursor.fetchall() if cursor.description else []


def caught(using: str, action: Any, beginning: str, part: str = "") -> str:
    """Return the first statement of the action with this beginning and part, its parameters filled in."""
    with CaptureQueriesContext(connections[using]) as queries:
        action()
    statements = [str(query["sql"]).strip() for query in queries.captured_queries]
    sql, *_ = [sql for sql in statements if sql.startswith(beginning) and part in sql]
    return sql


def claim_sql(using: str) -> str:
    return caught(using, lambda: claimed_ids(using, limit=LIMIT), "SELECT id")


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON plan."""
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
    """Return how many rows were read and then filtered out."""
    return sum(value for name, value in scan.items() if name.startswith("Rows Removed"))


def mysql_plan(using: str, sql: str, *, analyze: bool = True) -> list[dict[str, Any]]:
    """Return the plan of MariaDB, or that of MySQL with MariaDB's names."""
    query = sql.replace("%", "%%")
    if using == "mariadb":
        ((plan,),) = run(using, f"{'ANALYZE' if analyze else 'EXPLAIN'} FORMAT=JSON {query}")
        return list(nodes(json.loads(plan)))
    # MySQL does not analyse every UPDATE and DELETE. The first format has MariaDB's words, and estimates.
    analyze = analyze and sql.lstrip(" (\n").startswith(("SELECT", "WITH"))
    run(using, f"SET SESSION explain_json_format_version = {2 if analyze else 1}")
    ((plan,),) = run(using, f"EXPLAIN {'ANALYZE' if analyze else ''} FORMAT=JSON {query}")
    return [in_words_of_mariadb(node) for node in nodes(json.loads(plan))]


ACCESS = {"index_scan": "index", "index_range_scan": "range", "index_lookup": "ref"}


def in_words_of_mariadb(node: dict[str, Any]) -> dict[str, Any]:
    kind = str(node.get("access_type"))
    if "rows_examined_per_scan" in node:
        return node | {"r_rows": node["rows_examined_per_scan"]}
    if kind == "filter":
        # The share that it lets through belongs to what it reads from, which comes after it.
        source, *_ = node["inputs"]
        source["r_filtered"] = 100 * node["actual_rows"] / (source["actual_rows"] or 1)
    elif kind == "sort":
        return node | {"filesort": True}
    elif kind in {"materialize", "temp_table_aggregate"}:
        return node | {"temporary_table": True}
    elif kind.startswith(("zero_rows", "rows_fetched_before_execution")):
        return node | {"message": node["operation"]}
    elif "table_name" in node:
        is_unique = str(node["operation"]).startswith("Single-row")
        return node | {
            "table_name": node.get("alias", node["table_name"]),
            "key": node.get("index_name"),
            "used_key_parts": node.get("key_columns"),
            "access_type": "eq_ref" if is_unique else ACCESS.get(str(node.get("index_access_type")), "ALL"),
            "r_rows": node["actual_rows"],
            "r_filtered": node.get("r_filtered", 100),
            "using_index": node.get("covering"),
        }
    return node


def sqlite_plan(sql: str, params: Any = ()) -> list[str]:
    return [row[-1] for row in run("default", "EXPLAIN QUERY PLAN " + sql, params)]


class TestClaim:
    def test_postgresql_reads_only_the_rows_that_it_claims(self):
        plan = postgresql_plan(claim_sql("postgresql"))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Scan", "outbox_pending")
        assert scan["Actual Rows"] == LIMIT
        assert removed(scan) == 0
        assert all(node["Actual Rows"] <= LIMIT for node in plan)
        assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] < 20 * LIMIT

    @mysql_and_mariadb
    def test_mysql_and_mariadb_read_only_the_rows_that_they_claim(self, using: str):
        plan = mysql_plan(using, claim_sql(using))
        (table,) = [node for node in plan if "table_name" in node]
        # `r_rows` leaves out what the index itself refuses, so that the time must be part of the range.
        assert (table["key"], table["access_type"]) == ("outbox_pending", "range")
        assert table["used_key_parts"] == ["publisher", "blocks_key", "available_at"]
        assert table["r_rows"] <= LIMIT + 1
        assert table["r_filtered"] == 100
        assert not any("filesort" in node or "temporary_table" in node for node in plan)

    @mysql_and_mariadb
    def test_mysql_and_mariadb_look_for_due_messages_at_the_first_entries_of_the_index(self, using: str):
        for publisher, rows in (("default", 1), ("keyed", 1), ("idle", 0)):
            sql = caught(using, lambda: store_of(using).has_due(publisher), "SELECT EXISTS")  # noqa: B023 - called now
            (table,) = [node for node in mysql_plan(using, sql) if "table_name" in node]
            assert (table["key"], table["access_type"], table["r_rows"]) == ("outbox_pending", "range", rows)

    def test_sqlite_reads_due_messages_in_the_order_of_the_index(self):
        plan = sqlite_plan(claim_sql("default"))
        (search,) = [step for step in plan if "outbox_pending" in step]
        assert "outbox_pending (publisher=? AND blocks_key=? AND avail" in search
        # Only what was found is sorted again; the search itself comes in order, or it would sort all that is due.
        assert "USE TEMP B-TREE FOR ORDER BY" not in plan[: plan.index(search) + 2]
        assert not any(step.startswith("SCAN django_outbox") for step in plan)


class TestFew:
    """The plans of a claim of few messages are kept, so they suit a table that was empty when they were made."""

    def test_postgresql_reads_few_pages_of_a_table_that_has_grown(self):
        table = OutboxMessage._meta.db_table
        calls = [
            "outbox_due('idle')",
            "outbox_own('keyed')",
            "outbox_read('keyed', 1000000)",
            "outbox_unkeyed('default', 1000000, '-infinity')",
        ]
        with another_alias("postgresql") as using, transaction.atomic(using=using):
            run(using, f"CREATE SCHEMA grown; CREATE TABLE grown.{table} (LIKE {table} INCLUDING ALL)")
            run(using, "SET LOCAL search_path TO grown")
            store = PostgreSQLStore(connections[using])
            assert prepare(store, store.FEW_STATEMENTS)
            run(using, postgresql.KEEP_PLANS)
            for call in calls:
                assert len(run(using, f"EXECUTE {call}")) <= 1
            run(using, f"INSERT INTO grown.{table} OVERRIDING SYSTEM VALUE SELECT * FROM public.{table}")
            found = {}
            for call in calls:
                ((plan,),) = run(using, f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE {call}")
                assert not any(node.get("Node Type") == "Seq Scan" for node in nodes(plan))
                found[call] = plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]
                run(using, f"EXECUTE {call}")
            transaction.set_rollback(True, using=using)
        assert max(found.values()) < 10 * FEW_IN_ALL, found

    @mysql_and_mariadb
    @pytest.mark.parametrize("publisher", ["default", "keyed", "idle"])
    def test_mysql_and_mariadb_look_at_the_first_entries_of_two_indexes(self, using: str, publisher: str):
        names = [f"'{publisher}'"] * 4
        sql = store_of(using).name_tables(mysql.FIND_FEW) % (*names, f"'{mysql.EARLIEST}'")
        scans = {node["key"]: node for node in mysql_plan(using, sql) if "table_name" in node and "key" in node}
        assert scans["outbox_partitions"]["r_rows"] <= FEW * FEW_OF_KEY
        assert scans["outbox_pending"]["r_rows"] <= FEW

    def test_sqlite_looks_at_two_indexes_and_leases_by_the_primary_key(self):
        plan = sqlite_plan(table(sqlite.FIND_FEW), ["keyed"] * 2)
        assert any("outbox_partitions (publisher=?)" in step for step in plan)
        assert any("outbox_pending (publisher=? AND blocks_key=? AND avail" in step for step in plan)
        assert not any(step.startswith("SCAN django_outbox") for step in plan)
        plan = sqlite_plan(store_of("default").name_tables(sqlite.LEASE_FEW), [60, "[]", 0])
        assert "SEARCH django_outbox_outboxmessage USING INTEGER PRIMARY KEY (rowid=?)" in plan

    @mysql_and_mariadb
    def test_mysql_and_mariadb_lock_slots_and_messages_by_their_primary_keys(self, using: str):
        sql = store_of(using).name_tables(
            mysql.OWN_AND_READ.replace("{few}", "SELECT 1 AS wanted, 2 AS slot UNION ALL SELECT 3, 4")
        )
        tables = [node for node in mysql_plan(using, sql) if "table_name" in node]
        assert [(table.get("key"), table["access_type"]) for table in tables[1:]] == [("PRIMARY", "eq_ref")] * 2


class TestTimeline:
    """A read by time takes as many entries of the index as it lists, and a lookup takes one for each partition."""

    def sql(self, using: str, beginning: str, action: str, *arguments: Any, **options: Any) -> str:
        return caught(using, lambda: getattr(store_of(using), action)("keyed", *arguments, **options), beginning)

    def test_postgresql(self):
        old = (store_of("postgresql").read_place()[0] - datetime.timedelta(days=1), 0)
        plan = postgresql_plan(self.sql("postgresql", "SELECT partition", "list_fresh", old, limit=LIMIT))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert (scan["Index Name"], scan["Actual Rows"], removed(scan)) == ("outbox_pending", LIMIT, 0)
        assert not any("Sort" in node["Node Type"] for node in plan)
        plan = postgresql_plan(self.sql("postgresql", "SELECT number", "find_due", PARTITIONS))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert (scan["Index Name"], scan["Actual Rows"], removed(scan)) == ("outbox_partitions", 1, 0)
        plan = postgresql_plan(self.sql("postgresql", "SELECT COUNT", "sweep_heads", 0, limit=LIMIT))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert (scan["Node Type"], scan["Index Name"]) == ("Index Only Scan", "outbox_partitions")
        assert scan["Actual Rows"] == LIMIT

    @mysql_and_mariadb
    def test_mysql_and_mariadb(self, using: str):
        old = ("2000-01-01 00:00:00", 0)
        plan = mysql_plan(using, self.sql(using, "(SELECT", "list_fresh", old, limit=LIMIT))
        tables = [node for node in plan if node.get("key") == "outbox_pending"]
        assert [table["used_key_parts"][:3] for table in tables] == [["publisher", "blocks_key", "available_at"]] * 2
        assert max(table["r_rows"] for table in tables) <= LIMIT + 1
        plan = mysql_plan(using, self.sql(using, "SELECT number", "find_due", PARTITIONS))
        (scan,) = [node for node in plan if node.get("key") == "outbox_partitions"]
        assert scan["r_rows"] <= 1
        assert scan["using_index"]
        plan = mysql_plan(using, self.sql(using, "SELECT COUNT", "sweep_heads", 0, limit=LIMIT))
        (scan,) = [node for node in plan if node.get("key") == "outbox_partitions"]
        assert scan["r_rows"] <= LIMIT + 1
        assert scan["using_index"]

    def test_sqlite(self):
        old = ("2000-01-01 00:00:00", 0)
        plan = sqlite_plan(self.sql("default", "SELECT partition", "list_fresh", old, limit=LIMIT))
        assert any("outbox_pending (publisher=? AND blocks_key=? AND" in step for step in plan)
        assert not any("TEMP B-TREE" in step for step in plan)
        plan = sqlite_plan(self.sql("default", "SELECT value", "find_due", PARTITIONS))
        assert any("outbox_partitions (publisher=? AND partition=?" in step for step in plan)
        plan = sqlite_plan(self.sql("default", "SELECT COUNT", "sweep_heads", 0, limit=LIMIT))
        assert any("outbox_partitions (publisher=? AND partition>?" in step for step in plan)
        assert not any("TEMP B-TREE" in step for step in plan)


class TestKeys:
    """A listing of heads reads neither the later messages of a key nor processed ones."""

    def test_postgresql_takes_one_probe_of_the_index_for_each_key(self):
        plan = postgresql_plan(keyed_sql("postgresql", "WITH RECURSIVE probe"))
        scans = [node for node in plan if "Relation Name" in node]
        assert {scan["Index Name"] for scan in scans} == {"outbox_partitions"}
        assert all(removed(scan) == 0 for scan in scans)
        assert "partition > CASE" in scans[-1]["Index Cond"]
        assert plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"] < 10 * MANY_PARTITIONS

    def test_postgresql_reads_only_the_rows_of_a_key_that_it_claims(self):
        plan = postgresql_plan(keyed_sql("postgresql", "SELECT", "unnest", limit=5 * MANY_PARTITIONS))
        listing, locking = [node for node in plan if "Relation Name" in node]
        assert listing["Index Name"] == "outbox_partitions"
        assert (listing["Actual Rows"], listing["Actual Loops"], removed(listing)) == (5, MANY_PARTITIONS, 0)
        assert locking["Node Type"] == "Tid Scan"
        assert (locking["Actual Rows"], locking["Actual Loops"], removed(locking)) == (1, 5 * MANY_PARTITIONS, 0)

    @mysql_and_mariadb
    @pytest.mark.parametrize(
        ("first_stretch", "most"),
        [
            pytest.param(512, KEYED // KEYS * MANY_PARTITIONS + 4096, id="shallow keys are read through"),
            pytest.param(128, 128 + 2 * mysql.MAX_JUMP * MANY_PARTITIONS, id="deep keys are jumped over"),
        ],
    )
    def test_mysql_and_mariadb_read_a_bounded_number_of_rows_for_each_key(
        self, using: str, monkeypatch: pytest.MonkeyPatch, first_stretch: int, most: int
    ):
        monkeypatch.setattr(mysql, "FIRST_STRETCH", first_stretch)
        with CaptureQueriesContext(connections[using]) as queries:
            claimed_ids(using, "keyed", limit=MANY_PARTITIONS)
        listings = [query["sql"] for query in queries if query["sql"].strip().startswith("SELECT message.`partition`")]
        assert listings
        rows = 0
        for sql in listings:
            scans = {node["table_name"]: node for node in mysql_plan(using, sql) if "table_name" in node}
            stretch = scans[OutboxMessage._meta.db_table]
            assert (stretch["key"], stretch["used_key_parts"]) == (
                "outbox_partitions",
                ["processed_at", "blocks_key", "publisher", "partition"],
            )
            assert stretch["using_index"]
            assert (scans["message"]["key"], scans["message"]["r_rows"]) == ("PRIMARY", 1)
            rows += stretch["r_rows"]
        assert rows <= most

    @mysql_and_mariadb
    def test_mysql_and_mariadb_read_only_the_rows_of_a_key_that_they_claim(self, using: str):
        plan = mysql_plan(using, keyed_sql(using, "SELECT message.`partition`", "UNION ALL", limit=5 * MANY_PARTITIONS))
        scans = [node for node in plan if node.get("key") == "outbox_partitions"]
        assert len(scans) == MANY_PARTITIONS
        assert all(scan["r_rows"] <= 5 for scan in scans)

    @pytest.mark.parametrize(
        ("beginning", "bounds"),
        [
            ("WITH RECURSIVE probe", "(publisher=? AND partition>? AND partition<?)"),
            ("WITH RECURSIVE queue", "(publisher=? AND partition=? AND id>?)"),
        ],
    )
    def test_sqlite_takes_one_probe_of_the_index_for_each_row(self, beginning: str, bounds: str):
        plan = sqlite_plan(keyed_sql("default", beginning, limit=5 * MANY_PARTITIONS))
        searches = [step for step in plan if "outbox_partitions" in step]
        assert searches
        assert all(bounds in search for search in searches)
        assert not any(step.startswith("SCAN django_outbox") for step in plan)

    def test_a_slot_of_another_relay_costs_postgresql_one_probe(self):
        with another_alias("postgresql") as other, claim(other, "keyed", limit=MANY_PARTITIONS):
            plan = postgresql_plan(keyed_sql("postgresql", "WITH RECURSIVE probe"))
        (scan,) = [node for node in plan if "Relation Name" in node]
        assert scan["Actual Loops"] <= KEYS


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

    @mysql_and_mariadb
    def test_mysql_and_mariadb_find_each_row_by_the_primary_key(self, using: str, settlement: Any):
        plan = mysql_plan(using, self.settle_sql(using, settlement), analyze=False)
        (found,) = [node for node in plan if node.get("table_name") not in {None, "settled", "listed"}]
        assert found["key"] == "PRIMARY"
        assert found["access_type"] in {"eq_ref", "range"}


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        (sqlite.LEASE, [60, "[]"]),
        (sqlite.RELEASED, ["[]", "2026"]),
        *[
            (getattr(sqlite.SQLiteStore, name), ["[]", mark])
            for name in ("PROCESSED", "DELETED", "FAILED", "RETRIED")
            for mark in ("2026", None)
        ],
    ],
)
def test_sqlite_leases_settles_and_releases_each_row_by_the_primary_key(sql: str, params: list[Any]):
    plan = sqlite_plan(table(sql), params)
    assert "SEARCH django_outbox_outboxmessage USING INTEGER PRIMARY KEY (rowid=?)" in plan


class TestPurge:
    def test_postgresql(self):
        sql = caught("postgresql", lambda: store_of("postgresql").purge(3600, LIMIT, None), "WITH")
        scans = [node for node in postgresql_plan(sql) if "Index Name" in node]
        assert {"outbox_processed", "django_outbox_outboxmessage_pkey"} == {scan["Index Name"] for scan in scans}
        assert all(scan["Actual Rows"] <= LIMIT for scan in scans)

    @mysql_and_mariadb
    def test_mysql_and_mariadb(self, using: str):
        sql = caught(using, lambda: store_of(using).purge(3600, LIMIT, None), "SELECT")
        (found,) = [node for node in mysql_plan(using, sql) if "table_name" in node]
        assert found["key"] == "outbox_processed"
        assert found["r_rows"] <= LIMIT

    def test_sqlite(self):
        plan = sqlite_plan(table(sqlite.PURGE), [-3600, LIMIT])
        assert any("USING COVERING INDEX outbox_processed" in step for step in plan)
        assert not any("TEMP B-TREE" in step for step in plan)
