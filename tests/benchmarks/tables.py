"""The outbox's table as a benchmark finds it: the same rows for each case, and nothing left of the case before."""

import uuid
from contextlib import suppress
from typing import Any

from django.db import DatabaseError, connection

from django_outbox.models import OutboxMessage, StreamPosition
from tests.benchmarks.messages import fill
from tests.support.many_rows import TABLE, from_now, insert_rows


def empty() -> None:
    """Delete all rows, with dead rows and index entries."""
    run_sql(f"DELETE FROM {TABLE}" if _is("sqlite") else f"TRUNCATE TABLE {TABLE}")


def save(name: str, count: int, **content: Any) -> None:
    """Enqueue messages, and save them under a name. `content` is that of `messages.fill`."""
    empty()
    fill(count, **content)
    run_sql(f"CREATE TABLE saved_{name} AS SELECT * FROM {TABLE}")


def restore(name: str, *, streamed: bool) -> None:
    """Replace all rows by the rows that were saved under a name, as pending or as streamed messages."""
    empty()
    names = [field.attname for field in OutboxMessage._meta.fields if field.attname != "xid"]
    columns = {name: connection.ops.quote_name(name) for name in names}
    changed = {"available_at": "NULL", "blocks_key": "false"} if streamed else {}
    values = ", ".join((columns | changed).values())
    run_sql(f"INSERT INTO {TABLE} ({', '.join(columns.values())}) SELECT {values} FROM saved_{name} ORDER BY id")
    refresh()


def refresh() -> None:
    """Gather statistics and write to the disk now, instead of in the middle of a measurement.

    The broker's queues may be on the same disk, and wait for it with every confirm.
    """
    statements = {"postgresql": f"VACUUM (ANALYZE) {TABLE}", "mysql": f"ANALYZE TABLE {TABLE}"}
    run_sql(statements.get(connection.vendor, "ANALYZE"))
    if _is("postgresql"):
        # Needs a permission.
        with suppress(DatabaseError):
            run_sql("CHECKPOINT")


CHUNK = 500_000
"""Rows that one statement inserts."""

# UUIDs ascend within a chunk, as those of enqueue() do.
UUIDS = {
    "postgresql": "('{start}' || lpad(to_hex(n), 12, '0'))::uuid",
    "mysql": "CONCAT('{start}', LPAD(HEX(n), 12, '0'))",
}
PAYLOAD = '{"id": 1, "total": 1, "text": "' + "x" * 190 + '"}'


def insert_many(
    count: int, *, available: str = "", processed: str = "", topic: str = "", attempts: int = 0, keys: int = 0
) -> None:
    """Insert millions of rows in SQL.

    `available` and `processed` are seconds from now, as SQL in which `n` counts the rows; blank: NULL.
    With `keys` they are spread over that many keys.
    """
    for start in range(0, count, CHUNK):
        columns = {
            "message_id": UUIDS[connection.vendor].format(start=str(uuid.uuid4())[:24]),
            "topic": f"'{topic}'",
            "payload": f"'{PAYLOAD}'",
            "attempts": str(attempts),
            "occurred_at": from_now("default", -7200),
            "available_at": from_now("default", available),
            "processed_at": from_now("default", processed),
        }
        if keys:
            number = f"(n + {start}) % {keys}"
            # A large factor spreads neighbours over all slots.
            columns["key"], columns["partition"] = f"CONCAT('old-', {number})", f"1 + {number} * {(2**31 - 2) // keys}"
            columns["blocks_key"] = "true"
        insert_rows("default", min(CHUNK, count - start), **columns)


def pass_all() -> None:
    """Move the position of the stream behind everything that is in the table."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_snapshot()::text")
        [passed] = cursor.fetchone()
    StreamPosition.objects.update_or_create(publisher="default", defaults={"passed": passed, "page": ""})


def run_sql(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


def _is(vendor: str) -> bool:
    return connection.vendor == vendor
