"""Resuming a type reads the held messages once, in ranges of an index, however many messages are due or held."""

from collections.abc import Iterator
from functools import partial

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from django_outbox.models import HELD_BY_PAUSE, OutboxMessage
from django_outbox.stores.pausing import pause, resume
from tests.conftest import ALIASES, LOCKING
from tests.stores.test_plans import TIDY, fill, mysql_plan, postgresql_plan, removed, run
from tests.support.waiting import eventually

pytestmark = [pytest.mark.django_db(databases=ALIASES), pytest.mark.slow]

TABLE = OutboxMessage._meta.db_table
DUE, DUE_KEYED, HELD, HELD_KEYED, KEYS = 25_000, 25_000, 10_000, 10_000, 50
BATCH_SIZE = 1000
ENTRIES_OF_A_BLOCK = 50
"""At least this many entries of the index fit in one of PostgreSQL's blocks of 8 kB."""


@pytest.fixture(scope="module", autouse=True)
def many_messages(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    with django_db_blocker.unblock():
        for using in LOCKING:
            fill(using, HELD, column="available_at", seconds=-7200)
            fill(using, HELD_KEYED, column="available_at", seconds=-7200, keys=KEYS)
            run(using, f"UPDATE {TABLE} SET available_at = %s", [str(HELD_BY_PAUSE.replace(tzinfo=None))])
            fill(using, DUE, column="available_at", seconds=-3600)
            fill(using, DUE_KEYED, column="available_at", seconds=-3600, keys=KEYS)
            eventually(partial(is_tidy, using), "the table was vacuumed")
        yield
        for using in LOCKING:
            run(using, f"TRUNCATE {TABLE}")


def is_tidy(using: str) -> bool:
    """Update the statistics, and return whether PostgreSQL needs no row to know that an entry of the index is visible.

    It does need rows while another session has a snapshot from before they were written.
    """
    run(using, TIDY[connections[using].vendor].format(TABLE))
    if using != "postgresql":
        return True
    [(pages, visible)] = run(
        using, "SELECT pg_relation_size(oid) / 8192, relallvisible FROM pg_class WHERE relname = %s", [TABLE]
    )
    return bool(pages == visible)


@pytest.mark.parametrize("using", LOCKING)
def test_each_page_is_a_range_of_the_index_and_nothing_is_read_twice(using: str):
    pause("default", "no.such.type", using=using)
    with CaptureQueriesContext(connections[using]) as queries:
        resume("default", "no.such.type", using=using, batch_size=BATCH_SIZE)
    pages = [query["sql"] for query in queries if query["sql"].startswith("SELECT") and TABLE in query["sql"]]
    # A page for each batch, and one for the rest of the partition in which it ends.
    assert len(pages) <= (HELD + 2 * HELD_KEYED) // BATCH_SIZE + 2
    read = sum(read_by_postgresql(sql) if using == "postgresql" else read_by_mysql(using, sql) for sql in pages)
    # A page may begin in the middle of a partition.
    assert read <= HELD + HELD_KEYED + DUE_KEYED + len(pages) * HELD_KEYED // KEYS


def read_by_postgresql(sql: str) -> int:
    """Check the plan, and return how many entries of the index were read: estimated by its blocks."""
    plan = postgresql_plan(sql)
    assert not any("Sort" in node["Node Type"] for node in plan), sql
    (scan,) = [node for node in plan if "Scan" in node["Node Type"]]
    assert (scan["Node Type"], scan.get("Index Name")) == ("Index Only Scan", "outbox_pending"), sql
    assert scan["Actual Rows"] <= BATCH_SIZE, sql
    assert removed(scan) == 0, sql
    blocks: int = plan[0]["Shared Hit Blocks"] + plan[0]["Shared Read Blocks"]
    return blocks * ENTRIES_OF_A_BLOCK


def read_by_mysql(using: str, sql: str) -> int:
    plan = mysql_plan(using, sql)
    assert not any({"filesort", "read_sorted_file"} & set(node) for node in plan), sql
    (table,) = [node for node in plan if node.get("table_name") == TABLE]
    assert (table["key"], table["access_type"]) == ("outbox_pending", "range"), sql
    assert table["using_index"], sql
    return int(table["r_rows"] or 0)
