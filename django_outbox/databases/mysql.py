"""MySQL and MariaDB: a claim is a transaction with row locks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import DatabaseError

from django_outbox.databases.base import Claim, LockingDatabase, read_message

# The index is forced because the optimiser may otherwise walk the primary key, and lock rows on the way. The alias is
# compared twice, because the column's collation leads through the index but takes `Orders` for `orders`.
LOCK = """
SELECT id, LENGTH(payload) + LENGTH(headers)
FROM {table} FORCE INDEX (outbox_pending)
WHERE publisher = %s AND available_at <= UTC_TIMESTAMP(6)
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY available_at, id
LIMIT %s
FOR UPDATE SKIP LOCKED
"""

READ = """
SELECT id, message_id, type, topic, `key`, payload, headers, occurred_at, attempts
FROM {table} WHERE id IN %s ORDER BY available_at, id
"""

OLD = """
SELECT id FROM {table} FORCE INDEX (outbox_processed)
WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND
ORDER BY processed_at, id LIMIT %s
"""

MAX_TIMEOUT = 31_536_000
"""The longest timeout that MariaDB takes, in seconds."""


class MySQL(LockingDatabase):
    """Claims with FOR UPDATE SKIP LOCKED over the index `outbox_pending`."""

    DELETED = "DELETE FROM {table} WHERE id IN %s"
    PROCESSED = """
        UPDATE {table} SET processed_at = UTC_TIMESTAMP(6), available_at = NULL, attempts = attempts + 1, error = ''
        WHERE id IN %s
    """
    FAILED = """
        UPDATE {table} message
        JOIN JSON_TABLE(%s, '$[*]' COLUMNS (id BIGINT PATH '$.id', error LONGTEXT PATH '$.error')) settled
            ON message.id = settled.id
        SET message.failed_at = UTC_TIMESTAMP(6), message.available_at = NULL, message.attempts = message.attempts + 1,
            message.error = settled.error
    """
    RETRIED = """
        UPDATE {table} message
        JOIN JSON_TABLE(
            %s, '$[*]' COLUMNS (id BIGINT PATH '$.id', error LONGTEXT PATH '$.error', delay DOUBLE PATH '$.delay')
        ) settled ON message.id = settled.id
        SET message.available_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(settled.delay * 1000000) MICROSECOND,
            message.attempts = message.attempts + 1, message.error = settled.error
    """

    # MariaDB's JSON_VALID refuses what is nested deeper than 32 levels; MySQL's own limit is 100.
    max_json_depth = 31

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float) -> Iterator[Claim]:
        with (
            self._idle_limit(max_seconds),
            super().claim(publisher, limit=limit, max_bytes=max_bytes, max_seconds=max_seconds) as claim,
        ):
            yield claim

    def begin(self, max_seconds: float) -> None:
        # REPEATABLE READ would lock the gaps between the rows it scans, and so block the callers' INSERTs.
        self.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def lock(self, publisher: str, limit: int, max_bytes: int) -> Claim:
        ids, total = [], 0
        rows = self.fetch(LOCK, [publisher, publisher, limit])
        for id, size in rows:
            if total >= max_bytes:
                break
            ids.append(id)
            total += size
        if not ids:
            return Claim([])
        return Claim([read_message(row) for row in self.fetch(READ, [ids])])

    def purge(self, older_than: float, limit: int) -> int:
        ids = [id for (id,) in self.fetch(OLD, [round(older_than * 1_000_000), limit])]
        return self.execute(self.DELETED, [ids]) if ids else 0

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
