"""SQLite: one writer and no row locks, so a claim is a short lease."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django_outbox.databases.base import Claim, Database, Settlement, error_rows, read_message

logger = logging.getLogger("django_outbox")

NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')"
LATER = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %s || ' seconds')"

DUE = f"""
SELECT id, message_id, type, topic, "key", payload, headers, occurred_at, attempts, due
FROM (
    SELECT *, sum(length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB))) OVER (
        ORDER BY due, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM (
        SELECT id, message_id, type, topic, "key", payload, headers, occurred_at, attempts,
            CAST(available_at AS TEXT) AS due
        FROM {{table}}
        WHERE publisher = %s AND available_at <= {NOW}
        ORDER BY available_at, id LIMIT %s
    )
)
WHERE before IS NULL OR before < %s
ORDER BY due, id
"""

# A row that another relay leased in the meantime is due at another time than the one that was read.
LEASE = f"""
UPDATE {{table}} SET available_at = {LATER}
FROM json_each(%s) found
WHERE {{table}}.id = json_extract(found.value, '$[0]') AND {{table}}.available_at = json_extract(found.value, '$[1]')
RETURNING {{table}}.id, CAST({{table}}.available_at AS TEXT)
"""

RELEASED = """
UPDATE {table} SET available_at = json_extract(found.value, '$[1]')
FROM json_each(%s) found
WHERE {table}.id = json_extract(found.value, '$[0]') AND {table}.available_at = %s
"""

# Whoever finds another lease on the row than its own has lost the row to another relay, and leaves it alone.
MINE = "AND {table}.available_at = %s"

PROCESSED = f"""
UPDATE {{table}} SET processed_at = {NOW}, available_at = NULL, attempts = attempts + 1, error = ''
WHERE id IN (SELECT value FROM json_each(%s)) {MINE}
"""

DELETED = f"DELETE FROM {{table}} WHERE id IN (SELECT value FROM json_each(%s)) {MINE}"

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


@dataclass(frozen=True, slots=True)
class Lease:
    """A batch's mark, which is the end of its lease as it stands in `available_at`.

    `due` holds since when each message was due before, for as long as it is not settled.
    """

    mark: str
    due: dict[int, str]


class SQLite(Database):
    """Moves `available_at` ahead to claim, and never holds a transaction open while a batch is published."""

    @contextmanager
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float) -> Iterator[Claim]:
        claim = self._lease(publisher, limit, max_bytes, max_seconds)
        try:
            yield claim
        finally:
            self._release(claim)

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        touched = 0
        if settlement.processed:
            statement = DELETED if delete_processed else PROCESSED
            touched += self.execute(statement, [json.dumps(settlement.processed), claim.lease.mark])
        if settlement.failed:
            touched += self.execute(FAILED, [error_rows(settlement.failed), claim.lease.mark])
        if settlement.retried:
            touched += self.execute(RETRIED, [error_rows(settlement.retried), claim.lease.mark])
        settled = {*settlement.processed, *(row[0] for row in (*settlement.failed, *settlement.retried))}
        for id in settled:
            claim.lease.due.pop(id, None)
        touched += self._release(claim)
        if touched < len(claim.messages):
            logger.warning(
                "%d messages were not settled, because their lease had run out: they may be published again. "
                "Raise OUTBOX['LEASE'] or lower OUTBOX['BATCH_SIZE'].",
                len(claim.messages) - touched,
            )

    def purge(self, older_than: float, limit: int) -> int:
        return self.execute(PURGE, [-older_than, limit])

    def _lease(self, publisher: str, limit: int, max_bytes: int, max_seconds: float) -> Claim:
        while rows := self.fetch(DUE, [publisher, limit, max_bytes]):
            due = {row[0]: row[-1] for row in rows}
            leased = dict(self.fetch(LEASE, [max_seconds, json.dumps([*due.items()])]))
            if leased:
                messages = [read_message(row[:-1]) for row in rows if row[0] in leased]
                return Claim(messages, Lease(next(iter(leased.values())), {id: due[id] for id in leased}))
            # Another relay was faster with all of them; there may be more.
        return Claim([], Lease("", {}))

    def _release(self, claim: Claim) -> int:
        due = claim.lease.due
        if not due:
            return 0
        released = self.execute(RELEASED, [json.dumps([*due.items()]), claim.lease.mark])
        due.clear()
        return released
