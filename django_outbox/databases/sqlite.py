"""SQLite: one writer and no row locks, so a claim is a short lease."""

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from django_outbox.databases.base import Claim, Database, Row, Settlement, error_rows, read_message
from django_outbox.databases.partitions import Head, Turn, read_from_heads

logger = logging.getLogger("django_outbox")

NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')"
LATER = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %s || ' seconds')"

# Only the sizes are sorted for the sum; the payloads of what fits are read afterwards.
BATCH = """
SELECT id, message_id, type, topic, "key", payload, headers, occurred_at, attempts, error_class, size,
    CAST(available_at AS TEXT)
FROM {{table}} JOIN (
    SELECT id AS chosen, size,
        sum(size) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT id, available_at, length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB)) AS size
        FROM {{table}}
        WHERE {where}
    )
) ON id = chosen
WHERE before IS NULL OR before < %s
ORDER BY {order}
"""

UNKEYED = BATCH.format(
    order="available_at, id",
    where=f"publisher = %s AND partition = 0 AND available_at <= {NOW} ORDER BY available_at, id LIMIT %s",
)

READ = BATCH.format(order="id", where=f"id IN (SELECT value FROM json_each(%s)) AND available_at <= {NOW}")

# The planner begins its range at the first bound that it meets; the other one is what makes the partial index fit.
NEXT_PARTITION = """
SELECT id FROM {table}
WHERE publisher = %s AND processed_at IS NULL AND partition > {after} AND partition > 0
ORDER BY partition, id LIMIT 1
"""

HEADS = f"""
WITH RECURSIVE head(id, partition, due, step) AS (
    SELECT id, partition, available_at <= {NOW}, 1 FROM {{table}}
    WHERE id = ({NEXT_PARTITION.replace("{after}", "%s")})
    UNION ALL
    SELECT next.id, next.partition, next.available_at <= {NOW}, step + 1
    FROM head JOIN {{table}} next ON next.id = ({NEXT_PARTITION.replace("{after}", "head.partition")})
    WHERE step < %s
)
SELECT partition, id, due FROM head ORDER BY step
"""

FOLLOWERS = f"""
WITH RECURSIVE behind(partition, id, due, step) AS (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), 1, 0 FROM json_each(%s)
    UNION ALL
    SELECT next.partition, next.id, next.available_at <= {NOW}, step + 1
    FROM behind JOIN {{table}} next ON next.id = (
        SELECT id FROM {{table}}
        WHERE publisher = %s AND processed_at IS NULL AND partition > 0 AND partition = behind.partition
            AND id > behind.id
        ORDER BY id LIMIT 1
    )
    WHERE step < %s
)
SELECT partition, id, due FROM behind WHERE step > 0 ORDER BY 1, 2
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
UPDATE {{table}} SET processed_at = {NOW}, available_at = NULL, attempts = attempts + 1, error = '',
    error_class = ''
WHERE id IN (SELECT value FROM json_each(%s)) {MINE}
"""

DELETED = f"DELETE FROM {{table}} WHERE id IN (SELECT value FROM json_each(%s)) {MINE}"

ERROR = f"""
error = json_extract(settled.value, '$.error'), error_class = json_extract(settled.value, '$.error_class'),
    first_error_at = coalesce(first_error_at, {NOW}), last_error_at = {NOW}
"""

FAILED = f"""
UPDATE {{table}} SET failed_at = {NOW}, available_at = NULL, attempts = attempts + 1, {ERROR.strip()},
    partition = iif(json_extract(settled.value, '$.holds_key'), partition, -partition),
    dead_lettered_at = iif(json_extract(settled.value, '$.dead_lettered'), {NOW}, NULL)
FROM json_each(%s) settled
WHERE {{table}}.id = json_extract(settled.value, '$.id') {MINE}
"""

RETRIED = f"""
UPDATE {{table}} SET attempts = attempts + 1, {ERROR.strip()},
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
    def claim(self, publisher: str, *, limit: int, max_bytes: int, max_seconds: float, turn: Turn) -> Iterator[Claim]:
        claim = self._lease(publisher, limit, max_bytes, max_seconds, turn)
        try:
            yield claim
        finally:
            self._release(claim)

    def unkeyed(self, publisher: str, limit: int, max_bytes: int, floor: str | None) -> list[Row]:
        # What is processed leaves no entry in its indexes.
        return self.fetch(UNKEYED, [publisher, limit, max_bytes])

    def heads(self, publisher: str, after: int, limit: int) -> list[Head]:
        return [Head(*row) for row in self.fetch(HEADS, [publisher, after, publisher, limit])]

    def read_partitions(self, publisher: str, heads: Mapping[int, int], depth: int, max_bytes: int) -> list[Row]:
        def read(ids: Collection[int]) -> list[Row]:
            return self.fetch(READ, [json.dumps([*ids]), max_bytes])

        return read_from_heads(heads, depth, partial(self.followers, publisher), read)

    def followers(self, publisher: str, heads: Mapping[int, int], limit: int) -> list[Head]:
        """Return the next messages behind each head, up to `limit` a partition, by partition and in their order."""
        return [Head(*row) for row in self.fetch(FOLLOWERS, [json.dumps([*heads.items()]), publisher, limit])]

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        leased, touched = len(claim.lease.due), 0
        if settlement.processed:
            statement = DELETED if delete_processed else PROCESSED
            touched += self.execute(statement, [json.dumps(settlement.processed), claim.lease.mark])
        if settlement.failed:
            touched += self.execute(FAILED, [error_rows(settlement.failed), claim.lease.mark])
        if settlement.retried:
            touched += self.execute(RETRIED, [error_rows(settlement.retried), claim.lease.mark])
        failed, retried = (row.id for row in settlement.failed), (row.id for row in settlement.retried)
        for id in (*settlement.processed, *failed, *retried):
            claim.lease.due.pop(id, None)
        touched += self._release(claim)
        if touched < leased:
            logger.warning(
                "%d messages were not settled, because their lease had run out: they may be published again. "
                "Raise OUTBOX['LEASE'] or lower OUTBOX['BATCH_SIZE'].",
                leased - touched,
            )

    def lock_keys(self, keys: Collection[str]) -> None:
        """Do nothing: whoever has written is alone until it commits, and so numbers follow commits."""

    def purge(self, older_than: float, limit: int) -> int:
        return self.execute(PURGE, [-older_than, limit])

    def _lease(self, publisher: str, limit: int, max_bytes: int, max_seconds: float, turn: Turn) -> Claim:
        while rows := self.take(publisher, limit, max_bytes, turn):
            due = {row[0]: row[-1] for row in rows}
            leased = dict(self.fetch(LEASE, [max_seconds, json.dumps([*due.items()])]))
            if leased:
                claim = Claim([], Lease(next(iter(leased.values())), {id: due[id] for id in leased}))
                missed: set[str] = set()
                for row in rows:
                    message = read_message(row)
                    if message.id in leased and message.key not in missed:
                        claim.messages.append(message)
                    elif message.key:
                        # Another relay has the key: what comes behind is not to go before.
                        missed.add(message.key)
                return claim
            # Another relay was faster with all of them; there may be more.
        return Claim([], Lease("", {}))

    def _release(self, claim: Claim) -> int:
        due = claim.lease.due
        if not due:
            return 0
        released = self.execute(RELEASED, [json.dumps([*due.items()]), claim.lease.mark])
        due.clear()
        return released
