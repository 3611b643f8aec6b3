"""MySQL and MariaDB: a claim is a transaction with row locks."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from django.db import DatabaseError

from django_outbox.databases.base import Claim, LockingDatabase, Row, lock_slots
from django_outbox.databases.partitions import Head, Turn, read_from_heads
from django_outbox.models import KeyLock

# What is due is read first and locked then, by its ids: a read of a range that locks would lock the index entry behind
# its end too, of a message that is another relay's, and two relays would wait for each other.
#
# The index is forced because the optimiser may otherwise walk the primary key. The publisher is compared twice, because
# the column's collation leads through the index but takes `Orders` for `orders`.
UNKEYED = """
SELECT id, CAST(available_at AS CHAR)
FROM {table} FORCE INDEX (outbox_pending)
WHERE publisher = %s AND `partition` = 0 AND available_at <= UTC_TIMESTAMP(6) AND available_at >= %s
    AND (available_at > %s OR id > %s)
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY available_at, id
LIMIT %s
"""

LOCK = """
SELECT id, LENGTH(payload) + LENGTH(headers) FROM {table} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND available_at <= UTC_TIMESTAMP(6)
FOR UPDATE SKIP LOCKED
"""

SIZES = """
SELECT id, LENGTH(payload) + LENGTH(headers) FROM {table} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND available_at <= UTC_TIMESTAMP(6)
ORDER BY id
"""

# The driver makes times of text by Python's own hand, which takes longer than all other columns together.
READ = """
SELECT id, message_id, type, topic, `key`, payload, headers, CAST(occurred_at AS CHAR), attempts, error_class,
    LENGTH(payload) + LENGTH(headers), CAST(available_at AS CHAR)
FROM {table} FORCE INDEX (PRIMARY) WHERE id IN ({ids})
"""

# Neither LATERAL, which MariaDB does not know, nor a loose index scan, which it does not choose: a stretch of the index
# is read, and of each partition in it the first row.
WALK = """
SELECT message.`partition`, message.id, message.available_at <= UTC_TIMESTAMP(6), size
FROM (
    SELECT MIN(id) AS first, COUNT(*) AS size
    FROM (
        SELECT `partition`, id
        FROM {table} FORCE INDEX (outbox_partitions)
        WHERE processed_at IS NULL AND publisher = %s AND `partition` > %s
            AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
        ORDER BY `partition`, id
        LIMIT %s
    ) stretch
    GROUP BY `partition`
) head
STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = first
ORDER BY 1
"""

# Under READ COMMITTED a head that another relay has settled since it was read is seen as it is now.
LOCK_HEADS = """
SELECT id FROM {table} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND available_at <= UTC_TIMESTAMP(6)
FOR UPDATE SKIP LOCKED
"""

FOLLOWERS = """
WITH RECURSIVE behind AS (
    SELECT owned.part, owned.id, 0 AS step
    FROM JSON_TABLE(%s, '$[*]' COLUMNS (part INT PATH '$[0]', id BIGINT PATH '$[1]')) owned
    UNION ALL
    SELECT part, (
        SELECT next.id FROM {table} next FORCE INDEX (outbox_partitions)
        WHERE next.processed_at IS NULL AND next.publisher = %s AND next.`partition` = behind.part
            AND next.id > behind.id AND CONVERT(next.publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
        ORDER BY next.id LIMIT 1
    ), step + 1
    FROM behind WHERE step < %s AND behind.id IS NOT NULL
)
SELECT message.`partition`, message.id, message.available_at <= UTC_TIMESTAMP(6)
FROM behind JOIN {table} message ON message.id = behind.id
WHERE step > 0
ORDER BY 1, 2
"""

LOCK_KEYS = "INSERT INTO {locks} (slot) VALUES {rows} ON DUPLICATE KEY UPDATE slot = slot"

OLD = """
SELECT id FROM {table} FORCE INDEX (outbox_processed)
WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND
ORDER BY processed_at, id LIMIT %s
"""

EARLIEST = "1000-01-01"
"""The first time that the column can hold."""

FIRST_STRETCH, MIN_STRETCH, MAX_STRETCH = 512, 8, 4096
"""How many rows of the index are read at a time on the way from partition to partition. A statement takes as long as
some hundred rows: only where partitions are deeper is it better to jump from each to the next."""

MAX_TIMEOUT = 31_536_000
"""The longest timeout that MariaDB takes, in seconds."""


class MySQL(LockingDatabase):
    """Claims with FOR UPDATE SKIP LOCKED over forced indexes."""

    # Where most rows of a small table are meant, the optimiser would read all of it, and wait for those that another
    # relay has locked, which waits for these in turn. A DELETE of one table takes no hint.
    DELETED = """
        DELETE message
        FROM JSON_TABLE('[{ids}]', '$[*]' COLUMNS (id BIGINT PATH '$')) done
        STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = done.id
    """
    PROCESSED = """
        UPDATE {table} FORCE INDEX (PRIMARY)
        SET processed_at = UTC_TIMESTAMP(6), available_at = NULL, attempts = attempts + 1, error = '', error_class = ''
        WHERE id IN ({ids})
    """
    FAILED = """
        UPDATE JSON_TABLE(
            %s, '$[*]' COLUMNS (
                id BIGINT PATH '$.id', error LONGTEXT PATH '$.error', error_class VARCHAR(255) PATH '$.error_class',
                holds_key INT PATH '$.holds_key', dead_lettered INT PATH '$.dead_lettered'
            )
        ) settled
        STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = settled.id
        SET message.failed_at = UTC_TIMESTAMP(6), message.available_at = NULL, message.attempts = message.attempts + 1,
            message.error = settled.error, message.error_class = settled.error_class,
            message.last_error_at = UTC_TIMESTAMP(6),
            message.first_error_at = COALESCE(message.first_error_at, UTC_TIMESTAMP(6)),
            message.`partition` = IF(settled.holds_key, message.`partition`, -message.`partition`),
            message.dead_lettered_at = IF(settled.dead_lettered, UTC_TIMESTAMP(6), NULL)
    """
    RETRIED = """
        UPDATE JSON_TABLE(
            %s, '$[*]' COLUMNS (
                id BIGINT PATH '$.id', error LONGTEXT PATH '$.error', error_class VARCHAR(255) PATH '$.error_class',
                delay DOUBLE PATH '$.delay'
            )
        ) settled
        STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = settled.id
        SET message.available_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(settled.delay * 1000000) MICROSECOND,
            message.attempts = message.attempts + 1, message.error = settled.error,
            message.error_class = settled.error_class, message.last_error_at = UTC_TIMESTAMP(6),
            message.first_error_at = COALESCE(message.first_error_at, UTC_TIMESTAMP(6))
    """

    # MariaDB's JSON_VALID refuses what is nested deeper than 32 levels; MySQL's own limit is 100.
    max_json_depth = 31

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float, turn: Turn) -> Iterator[Claim]:
        with (
            self._idle_limit(max_seconds),
            super().claim(publisher, limit=limit, max_bytes=max_bytes, max_seconds=max_seconds, turn=turn) as claim,
        ):
            yield claim

    def execute_for(self, sql: str, ids: Sequence[int]) -> int:
        return self.execute(_for_ids(sql, ids))

    def begin(self, max_seconds: float) -> None:
        # Each statement is to see what was committed before it, and to lock no gaps, which would block INSERTs.
        self.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def unkeyed(self, publisher: str, limit: int, max_bytes: int, floor: str | None) -> list[Row]:
        sizes: list[tuple[int, int]] = []
        at, after = floor or EARLIEST, 0
        # Not until it is full: what is left may be little, and among what others have locked.
        while len(sizes) < max(limit // 2, 1):
            wanted = limit - len(sizes)
            due = self.fetch(UNKEYED, [publisher, at, at, after, publisher, wanted])
            if due:
                locked = dict(self.fetch(_for_ids(LOCK, [id for id, _ in due])))
                sizes += [(id, locked[id]) for id, _ in due if id in locked]
                after, at = due[-1]
            if len(due) < wanted:
                break
        return self._read_within(sizes, max_bytes)

    def heads(self, publisher: str, after: int, limit: int) -> list[Head]:
        heads: list[Head] = []
        stretch = FIRST_STRETCH
        while len(heads) < limit:
            rows = self.fetch(WALK, [publisher, after, publisher, stretch])
            heads += [Head(*row) for *row, _ in rows]
            if sum(size for *_, size in rows) < stretch:
                break
            after = heads[-1].partition
            wanted = (limit - len(heads)) * stretch // len(rows)
            stretch = max(min(2 * stretch, wanted, MAX_STRETCH), MIN_STRETCH) if len(rows) > 1 else MIN_STRETCH
        return heads[:limit]

    def lock_heads(self, ids: Collection[int]) -> set[int]:
        return {id for (id,) in self.fetch(_for_ids(LOCK_HEADS, ids))}

    def read_partitions(self, publisher: str, heads: Mapping[int, int], depth: int, max_bytes: int) -> list[Row]:
        def read(ids: Collection[int]) -> list[Row]:
            return self._read_within(self.fetch(_for_ids(SIZES, ids)), max_bytes)

        return read_from_heads(heads, depth, partial(self.followers, publisher), read)

    def followers(self, publisher: str, heads: Mapping[int, int], limit: int) -> list[Head]:
        """Return the next messages behind each head, up to `limit` a partition, by partition and in their order."""
        owned = json.dumps([*heads.items()])
        return [Head(*row) for row in self.fetch(FOLLOWERS, [owned, publisher, publisher, limit])]

    def _read_within(self, sizes: Sequence[tuple[Any, ...]], max_bytes: int) -> list[Row]:
        """Read the first of the messages, given as ids and sizes, up to so many bytes and at least one."""
        ids: list[int] = []
        total = 0
        for id, size in sizes:
            if total >= max_bytes:
                break
            ids.append(id)
            total += size
        rows = {row[0]: row for row in self.fetch(_for_ids(READ, ids))} if ids else {}
        return [rows[id] for id in ids if id in rows]

    def lock_keys(self, keys: Collection[str]) -> None:
        # GET_LOCK is of the session, and would outlive a rollback; a row that is written is locked until the end.
        if slots := lock_slots(keys):
            table = self.connection.ops.quote_name(KeyLock._meta.db_table)
            self.execute(LOCK_KEYS.format(locks=table, rows=", ".join(["(%s)"] * len(slots))), slots)

    def purge(self, older_than: float, limit: int) -> int:
        ids = [id for (id,) in self.fetch(OLD, [round(older_than * 1_000_000), limit])]
        return self.execute_for(self.DELETED, ids) if ids else 0

    @contextmanager
    def _idle_limit(self, max_seconds: float) -> Iterator[None]:
        """Let MariaDB end the transaction of a relay that stands still without dying; MySQL knows no such limit."""
        if self.connection.in_atomic_block or not self.connection.mysql_is_mariadb:  # type: ignore[attr-defined]
            yield
            return
        self.execute(f"SET SESSION idle_transaction_timeout = {min(math.ceil(max_seconds), MAX_TIMEOUT)}")
        try:
            yield
        finally:
            with suppress(DatabaseError):
                self.execute("SET SESSION idle_transaction_timeout = DEFAULT")


def _for_ids(sql: str, ids: Collection[int]) -> str:
    """Write ids into a statement by hand: the driver takes several times as long."""
    return sql.replace("{ids}", ",".join(map(str, ids)))
