"""SQLite: one writer and no row locks, so a claim is a short lease."""

import datetime
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django_outbox.databases.base import Claim, Database, Settlement, error_rows, read_headers, read_uuid
from django_outbox.messages import Message

logger = logging.getLogger("django_outbox")

NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now')"
LATER = "strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', %s || ' seconds')"

LEASE = f"""
UPDATE {{table}} SET available_at = {LATER}
WHERE id IN (
    SELECT id FROM (
        SELECT id, sum(length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB))) OVER (
            ORDER BY available_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS before
        FROM (
            SELECT id, payload, headers, available_at FROM {{table}}
            WHERE publisher = %s AND available_at <= {NOW}
            ORDER BY available_at, id LIMIT %s
        )
    ) WHERE before IS NULL OR before < %s
)
RETURNING id, message_id, type, topic, "key", payload, headers, occurred_at, attempts, CAST(available_at AS TEXT)
"""

# Whoever finds another lease on the row than its own has lost the row to another relay, and leaves it alone.
MINE = "AND {table}.available_at = %s"

PROCESSED = f"""
UPDATE {{table}} SET processed_at = {NOW}, available_at = NULL, attempts = attempts + 1, error = ''
WHERE id IN (SELECT value FROM json_each(%s)) {MINE}
"""

DELETED = f"DELETE FROM {{table}} WHERE id IN (SELECT value FROM json_each(%s)) {MINE}"

RELEASED = f"UPDATE {{table}} SET available_at = {NOW} WHERE id IN (SELECT value FROM json_each(%s)) {MINE}"

FAILED = f"""
UPDATE {{table}} SET failed_at = {NOW}, available_at = NULL, attempts = attempts + 1,
    error = json_extract(settled.value, '$.error')
FROM json_each(%s) settled
WHERE {{table}}.id = json_extract(settled.value, '$.id') {MINE}
"""

RETRIED = f"""
UPDATE {{table}} SET attempts = attempts + 1, error = json_extract(settled.value, '$.error'),
    available_at = {LATER.replace("%s", "json_extract(settled.value, '$.delay')")}
FROM json_each(%s) settled
WHERE {{table}}.id = json_extract(settled.value, '$.id') {MINE}
"""

PURGE = f"""
DELETE FROM {{table}} WHERE id IN (
    SELECT id FROM {{table}} WHERE processed_at < {LATER} ORDER BY processed_at, id LIMIT %s
)
"""


class SQLite(Database):
    """Moves `available_at` ahead to claim, and never holds a transaction open while a batch is published."""

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float) -> Iterator[Claim]:
        claim = self._lease(publisher, limit, max_bytes, max_seconds)
        try:
            yield claim
        except BaseException:
            self._release(claim, [message.id for message in claim.messages])
            raise

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        touched = 0
        if settlement.processed:
            touched += self.execute(
                DELETED if delete_processed else PROCESSED, [json.dumps(settlement.processed), claim.lease]
            )
        if settlement.failed:
            touched += self.execute(FAILED, [error_rows(settlement.failed), claim.lease])
        if settlement.retried:
            touched += self.execute(RETRIED, [error_rows(settlement.retried), claim.lease])
        settled = {*settlement.processed, *(row[0] for row in (*settlement.failed, *settlement.retried))}
        self._release(claim, [message.id for message in claim.messages if message.id not in settled])
        if touched < len(settled):
            logger.warning(
                "%d messages were not settled, because their lease had run out: they may be published again. "
                "Raise OUTBOX['LEASE'] or lower OUTBOX['BATCH_SIZE'].",
                len(settled) - touched,
            )

    def purge(self, older_than: float, limit: int) -> int:
        return self.execute(PURGE, [-older_than, limit])

    def _release(self, claim: Claim, ids: list[int]) -> None:
        if ids:
            self.execute(RELEASED, [json.dumps(ids), claim.lease])

    def _lease(self, publisher: str, limit: int, max_bytes: int, max_seconds: float) -> Claim:
        rows = sorted(self.fetch(LEASE, [max_seconds, publisher, limit, max_bytes]))
        messages = [
            Message(
                id,
                read_uuid(message_id),
                type,
                topic,
                key,
                payload.encode(),
                read_headers(headers),
                _read_time(occurred_at),
                attempts,
            )
            for id, message_id, type, topic, key, payload, headers, occurred_at, attempts, _lease in rows
        ]
        return Claim(messages, lease=rows[0][-1] if rows else None)


def _read_time(value: str | datetime.datetime) -> datetime.datetime:
    time = value if isinstance(value, datetime.datetime) else datetime.datetime.fromisoformat(value)
    return time.replace(tzinfo=datetime.timezone.utc)
