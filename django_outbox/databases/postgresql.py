"""PostgreSQL: a claim is a transaction with row locks."""

import datetime
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from django_outbox.databases.base import LockingDatabase, Row, lock_slots
from django_outbox.databases.partitions import Head

# What fits is cut twice: by the stored sizes, generously, so that no row beyond the limit is read from the TOAST table,
# and then by the sizes of the text. OFFSET keeps the planner from making each text twice. Sums are taken over rows that
# are locked already, because a window function and FOR UPDATE may not stand in one SELECT.
BATCH = """
SELECT id, message_id::text, type, topic, key, payload, headers, occurred_at AT TIME ZONE 'UTC', attempts, error_class,
    size{extra}
FROM (
    SELECT *, sum(size) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT *, octet_length(payload) + octet_length(headers) AS size
        FROM (
            SELECT id, message_id, type, topic, key, payload::text AS payload, headers::text AS headers, occurred_at,
                attempts, error_class, available_at, partition
            FROM (
                SELECT *, sum(stored) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
                FROM (SELECT *, pg_column_size(payload) AS stored FROM {source}) due
            ) stored
            WHERE before IS NULL OR before < %s
            OFFSET 0
        ) fitting
    ) sized
) batch
WHERE before IS NULL OR before < %s
ORDER BY {order}
"""

# In the order of the index, so that a row that is not yet due is never scanned.
UNKEYED = BATCH.format(
    order="available_at, id",
    extra=", available_at AT TIME ZONE 'UTC'",
    source="""{table}
                    WHERE publisher = %s AND partition = 0 AND available_at <= statement_timestamp()
                        AND available_at >= %s::timestamp AT TIME ZONE 'UTC'
                    ORDER BY available_at, id
                    LIMIT %s
                    FOR UPDATE SKIP LOCKED""",
)

# The index is partial: without `partition > 0` in so many words it would not be used.
HEADS = """
WITH RECURSIVE head AS (
    (
        SELECT partition, id, available_at <= statement_timestamp() AS due, 1 AS step
        FROM {table}
        WHERE publisher = %s AND processed_at IS NULL AND partition > 0 AND partition > %s
        ORDER BY partition, id LIMIT 1
    )
    UNION ALL
    SELECT next.*, step + 1
    FROM head
    CROSS JOIN LATERAL (
        SELECT partition, id, available_at <= statement_timestamp()
        FROM {table}
        WHERE publisher = %s AND processed_at IS NULL AND partition > 0 AND partition > head.partition
        ORDER BY partition, id LIMIT 1
    ) next
    WHERE step < %s
)
SELECT partition, id, due FROM head ORDER BY step
"""

# Under READ COMMITTED a head that another relay has settled since it was read is seen as it is now.
LOCK_HEADS = """
SELECT id FROM {table} WHERE id = ANY(%s::bigint[]) AND available_at <= statement_timestamp() FOR UPDATE SKIP LOCKED
"""

READ_PARTITIONS = BATCH.format(
    order="id",
    extra=", partition, available_at <= statement_timestamp()",
    source="""unnest(%s::integer[], %s::bigint[]) AS owned(own_partition, head)
                    CROSS JOIN LATERAL (
                        SELECT * FROM {table}
                        WHERE publisher = %s AND processed_at IS NULL AND partition > 0
                            AND partition = own_partition AND id >= head
                        ORDER BY id LIMIT %s
                    ) message""",
)

LOCK_KEYS = "SELECT pg_advisory_xact_lock(%s, slot) FROM unnest(%s::integer[]) slot"

LOCK_SPACE = zlib.crc32(b"django_outbox") - 2**31
"""Keeps these locks apart from other advisory locks."""

PURGE = """
DELETE FROM {table} WHERE id = ANY(ARRAY(
    SELECT id FROM {table} WHERE processed_at < statement_timestamp() - %s * interval '1 second'
    ORDER BY processed_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
"""

WAKE = "SELECT pg_notify(%s, publisher) FROM unnest(%s::text[]) publisher"

CHANNEL = "django_outbox"
"""Where relays listen; the payload is the alias of a publisher."""

MAX_TIMEOUT = 2**31 - 1
"""The longest timeout that PostgreSQL takes, in milliseconds."""


def array(numbers: Iterable[int]) -> str:
    """Return numbers as PostgreSQL's text of an array: psycopg takes several times as long to make it."""
    return f"{{{','.join(map(str, numbers))}}}"


def due_only(rows: list[Row]) -> list[Row]:
    """Return the rows before which, in their partition, there is none that is not due; they end with these two."""
    if all(row[-1] for row in rows):
        return rows
    found, passed = [], set()
    for row in rows:
        *_, partition, due = row
        if not due:
            passed.add(partition)
        elif partition not in passed:
            found.append(row)
    return found


class PostgreSQL(LockingDatabase):
    """Claims with FOR UPDATE SKIP LOCKED over the partial indexes."""

    can_wake = True
    DELETED = "DELETE FROM {table} WHERE id = ANY(%s::bigint[])"
    PROCESSED = """
        UPDATE {table}
        SET processed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1, error = '',
            error_class = ''
        WHERE id = ANY(%s::bigint[])
    """
    FAILED = """
        UPDATE {table} message
        SET failed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1, error = settled.error,
            error_class = settled.error_class, last_error_at = statement_timestamp(),
            first_error_at = coalesce(first_error_at, statement_timestamp()),
            partition = CASE WHEN settled.holds_key THEN partition ELSE -partition END,
            dead_lettered_at = CASE WHEN settled.dead_lettered THEN statement_timestamp() END
        FROM jsonb_to_recordset(%s::jsonb)
            AS settled(id bigint, error text, error_class text, holds_key boolean, dead_lettered boolean)
        WHERE message.id = settled.id
    """
    RETRIED = """
        UPDATE {table} message
        SET available_at = statement_timestamp() + settled.delay * interval '1 second', attempts = attempts + 1,
            error = settled.error, error_class = settled.error_class, last_error_at = statement_timestamp(),
            first_error_at = coalesce(first_error_at, statement_timestamp())
        FROM jsonb_to_recordset(%s::jsonb) AS settled(id bigint, error text, error_class text, delay double precision)
        WHERE message.id = settled.id
    """

    def begin(self, max_seconds: float) -> None:
        # A settlement lost in a crash of the server only sends the messages again, so its commit need not wait for the
        # disk. The timeout ends the transaction of a relay that stands still without dying.
        milliseconds = min(max(round(max_seconds * 1000), 1), MAX_TIMEOUT)
        self.execute(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO off; "
            f"SET LOCAL idle_in_transaction_session_timeout TO {milliseconds}"
        )

    def execute_for(self, sql: str, ids: Sequence[int]) -> int:
        return self.execute(sql, [array(ids)])

    def unkeyed(self, publisher: str, limit: int, max_bytes: int, floor: datetime.datetime | None) -> list[Row]:
        return self.fetch(UNKEYED, [publisher, floor or "-infinity", limit, 2 * max_bytes, max_bytes])

    def heads(self, publisher: str, after: int, limit: int) -> list[Head]:
        return [Head(*row) for row in self.fetch(HEADS, [publisher, after, publisher, limit])]

    def lock_heads(self, ids: Collection[int]) -> set[int]:
        return {id for (id,) in self.fetch(LOCK_HEADS, [array(ids)])}

    def read_partitions(self, publisher: str, heads: Mapping[int, int], depth: int, max_bytes: int) -> list[Row]:
        owned = [array(heads), array(heads.values())]
        return due_only(self.fetch(READ_PARTITIONS, [*owned, publisher, depth, 2 * max_bytes, max_bytes]))

    def lock_keys(self, keys: Collection[str]) -> None:
        if slots := lock_slots(keys):
            self.fetch(LOCK_KEYS, [LOCK_SPACE, slots])

    def wake(self, publishers: Collection[str]) -> None:
        self.fetch(WAKE, [CHANNEL, list(publishers)])

    def listen(self, seconds: float) -> Iterator[set[str] | None]:
        self.execute(f"LISTEN {CHANNEL}")
        yield None
        while True:
            with self.connection.wrap_database_errors:
                notifications = self.connection.connection.notifies(timeout=seconds, stop_after=1)
                heard = {notification.payload for notification in notifications}
            yield heard

    def purge(self, older_than: float, limit: int) -> int:
        return self.execute(PURGE, [older_than, limit])
