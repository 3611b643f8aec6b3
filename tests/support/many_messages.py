"""A table of many messages in all states, for tests of query plans."""

from django.db import connections

from tests.stores.test_plans import TIDY, mysql_plan, postgresql_plan, removed, run
from tests.support.many_rows import TABLE, from_now, insert_rows

ROWS = 200_000
INDEX_SCANS = {"Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}


def fill_table(using: str) -> None:
    """Write the messages, and let the database gather its statistics.

    Of every hundred rows 2 have failed, 20 are pending, 5 of them for another publisher, and the others are processed.
    A third have a key, which those that have failed let pass.
    """
    time = from_now(using, "-1.0 * n")
    insert_rows(
        using,
        ROWS,
        type="CASE WHEN n % 7 = 0 THEN 'order.paid' ELSE 'order.created' END",
        key="CASE WHEN n % 3 = 0 THEN CONCAT('order-', n % 4999) ELSE '' END",
        partition="CASE WHEN n % 3 > 0 THEN 0 ELSE 1 + n % 4999 END",
        blocks_key="n % 3 = 0 AND n % 100 BETWEEN 2 AND 21",
        publisher="CASE WHEN n % 100 < 7 THEN 'other' ELSE 'default' END",
        occurred_at=time,
        failed_at=f"CASE WHEN n % 100 < 2 THEN {time} END",
        available_at=f"CASE WHEN n % 100 BETWEEN 2 AND 21 THEN {time} END",
        processed_at=f"CASE WHEN n % 100 > 21 THEN {time} END",
    )
    run(using, TIDY[connections[using].vendor].format(TABLE))


def is_sorted(using: str, sql: str, limit: int) -> bool:
    """Check that a statement reads the messages by an index, up to a limit, and return whether it sorts them."""
    if using == "postgresql":
        plan = postgresql_plan(sql)
        scans = [node for node in plan if "Scan" in node["Node Type"]]
        scans = [node for node in scans if node["Node Type"] not in ("Subquery Scan", "CTE Scan")]
        assert scans, sql[:1000]
        assert {scan["Node Type"] for scan in scans} <= INDEX_SCANS, sql[:1000]
        for scan in scans:
            assert (scan["Actual Rows"] + removed(scan)) * scan["Actual Loops"] <= limit + 1, sql[:1000]
        return any("Sort" in node["Node Type"] for node in plan)
    plan = mysql_plan(using, sql)
    tables = [node for node in plan if node.get("table_name") in (TABLE, "message")]
    # It looked into a unique index, or at the end of another, and needs no table: "Select tables optimized away".
    assert tables or any("message" in node for node in plan), sql[:1000]
    assert all(table["access_type"] != "ALL" and table["key"] for table in tables), sql[:1000]
    assert all((table["r_rows"] or 0) <= limit + 1 for table in tables), sql[:1000]
    # MySQL takes any index when it expects few rows, and sorts them; the line above bounds how many.
    return using != "mysql" and any({"filesort", "read_sorted_file"} & set(node) for node in plan)
