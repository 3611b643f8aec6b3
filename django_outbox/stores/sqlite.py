"""SQLite: one writer and no row locks, so a claim is a short lease."""

import json
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import DatabaseError, IntegrityError, OperationalError, transaction

from django_outbox.db.errors import shows_conflict, shows_refused_row
from django_outbox.models import HELD_BY_PAUSE, MAX_HISTORY
from django_outbox.stores.base import CHANGED, SKIPPED, Store, report_lost
from django_outbox.stores.claiming import (
    FEW,
    FEW_OF_KEY,
    SIZE,
    OwnedHeads,
    Queued,
    Row,
    Span,
    choose,
    lock_number,
)
from django_outbox.stores.clock import boot_time
from django_outbox.stores.locks import FIRST_PARTITION
from django_outbox.stores.rows import (
    MAX_HISTORY_ERROR_LENGTH,
    Claim,
    ClaimRequest,
    Held,
    NewRow,
    Purged,
    Settlement,
    read_messages,
)
from django_outbox.stores.timeline import Fresh
from django_outbox.utils.logs import logger
from django_outbox.utils.text import counted, some_ids

NOW = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now')"
LATER = "strftime('%%Y-%%m-%%d %%H:%%M:%%f000', 'now', %s || ' seconds')"

# Any column may hold any value. Text that is not UTF-8, or an invalid time, would make the driver fail for all rows, so
# it returns bytes, which are decoded row by row.
COLUMNS = """
id, CAST(message_id AS BLOB), CAST(type AS BLOB), CAST(topic AS BLOB), CAST("key" AS BLOB), CAST(payload AS BLOB),
    CAST(headers AS BLOB), CAST(occurred_at AS BLOB), CAST(attempts AS INTEGER), CAST(error_class AS BLOB)
""".strip()

# Only the sizes are sorted for the sum; the payloads of messages that fit are read afterwards.
UNKEYED = f"""
SELECT {COLUMNS}, size, CAST(available_at AS TEXT)
FROM {{table}} JOIN (
    SELECT id AS chosen, size,
        sum(size) OVER (ORDER BY available_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT id, available_at, length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB)) AS size
        FROM {{table}} message
        WHERE publisher = %s AND blocks_key = 0 AND available_at <= {NOW} {{others}}
        ORDER BY available_at, id LIMIT %s
    )
) ON id = chosen
WHERE before IS NULL OR before < %s
ORDER BY available_at, id
"""

SIZE_AND_TIME = "length(CAST(payload AS BLOB)) + length(CAST(headers AS BLOB)), CAST(available_at AS TEXT)"

READ = f"""
SELECT {COLUMNS}, {SIZE_AND_TIME}, partition
FROM {{table}} WHERE id IN (SELECT value FROM json_each(%s))
"""

UNDELIVERED = "blocks_key AND blocks_key = 1"
"""SQLite uses a partial index only if a term of the query is spelled as the index's condition: `blocks_key` where
Django 5.2 has created it, and `blocks_key = 1` since Django 6.1 (https://sqlite.org/partialindex.html)."""

# Leases that have run out were deleted before.
FREE = "NOT EXISTS (SELECT 1 FROM {locks} WHERE number = %s + message.partition) {others}"

LIST_HEADS = f"""
WITH RECURSIVE probe(partition, due, found, step) AS (
    SELECT %s, 0, 0, 0
    UNION ALL
    SELECT message.partition, message.available_at <= {NOW} AND {FREE},
        found + coalesce(message.available_at <= {NOW} AND {FREE}, 0), step + 1
    FROM probe JOIN {{table}} message ON message.id = (
        SELECT id FROM {{table}}
        WHERE publisher = %s AND {UNDELIVERED} AND partition > probe.partition AND partition <= %s
        ORDER BY partition, id LIMIT 1
    )
    WHERE found < %s AND step < %s
)
SELECT partition, due, step FROM probe WHERE due OR step = (SELECT max(step) FROM probe) ORDER BY step
"""

LIST_FRESH = f"""
SELECT partition, CAST(available_at AS TEXT), id FROM {{table}} INDEXED BY outbox_pending
WHERE publisher = %s AND blocks_key = 1 AND available_at <= {NOW} AND (available_at, id) > (%s, %s)
ORDER BY available_at, id LIMIT %s
"""

FIND_DUE = f"""
SELECT value FROM json_each(%s)
WHERE (
    SELECT available_at <= {NOW} {{others}} FROM {{table}} message
    WHERE publisher = %s AND {UNDELIVERED} AND partition = value ORDER BY id LIMIT 1
)
"""

QUEUES = f"""
WITH RECURSIVE queue(partition, id, due, size, step) AS (
    SELECT value, 0, 1, 0, 0 FROM json_each(%s)
    UNION ALL
    SELECT message.partition, message.id, message.available_at <= {NOW} {{others}},
        length(CAST(message.payload AS BLOB)) + length(CAST(message.headers AS BLOB)), step + 1
    FROM queue JOIN {{table}} message ON message.id = (
        SELECT id FROM {{table}}
        WHERE publisher = %s AND {UNDELIVERED} AND partition = queue.partition AND id > queue.id
        ORDER BY id LIMIT 1
    )
    WHERE step < %s
)
SELECT partition, id, due, size FROM queue WHERE step > 0 ORDER BY 1, 2
"""

# All undelivered messages with a key, and all due ones without, unless there are many.
FIND_FEW = f"""
SELECT * FROM (
    SELECT partition, id, available_at <= {NOW}, {SIZE_AND_TIME} FROM {{table}}
    WHERE publisher = %s AND {UNDELIVERED} ORDER BY partition, id LIMIT {FEW * FEW_OF_KEY}
)
UNION ALL
SELECT * FROM (
    SELECT 0, id, TRUE, {SIZE_AND_TIME} FROM {{table}}
    WHERE publisher = %s AND blocks_key = 0 AND available_at <= {NOW} ORDER BY available_at, id LIMIT {FEW}
)
"""

LEASED = f"""
SELECT number - %s FROM {{locks}} WHERE number IN (SELECT %s + value FROM json_each(%s)) AND held_until > {NOW}
"""

PENDING = "SELECT EXISTS (SELECT 1 FROM {table} WHERE publisher = %s AND available_at IS NOT NULL)"

# Not leases of single messages: a relay that was stopped may renew its lease as long as no other relay has taken it.
FORGET_LEASES = f"""
DELETE FROM {{locks}} WHERE held_until <= {NOW} AND number > 0 AND number %% {2**32} < {FIRST_PARTITION}
"""

LEASE = f"""
UPDATE {{table}} SET available_at = {LATER} WHERE id IN (SELECT value FROM json_each(%s))
RETURNING id, CAST(available_at AS TEXT)
"""

# Messages that have changed since they were listed, or whose partitions another relay has, are left out.
LEASE_FEW = f"""
UPDATE {{table}} SET available_at = {LATER} FROM json_each(%s) found
WHERE {{table}}.id = json_extract(found.value, '$[0]')
    AND CAST({{table}}.available_at AS TEXT) = json_extract(found.value, '$[1]')
    AND NOT EXISTS (SELECT 1 FROM {{locks}} WHERE number = %s + {{table}}.partition AND held_until > {NOW})
RETURNING {COLUMNS}, CAST(available_at AS TEXT)
"""

LEASE_PARTITIONS = "INSERT OR REPLACE INTO {locks} (number, held_until) SELECT %s + value, %s FROM json_each(%s)"

RELEASE_PARTITIONS = """
DELETE FROM {locks} WHERE number IN (SELECT %s + value FROM json_each(%s)) AND held_until = %s
"""

RELEASED = """
UPDATE {table} SET available_at = json_extract(found.value, '$[1]')
FROM json_each(%s) found
WHERE {table}.id = json_extract(found.value, '$[0]') AND {table}.available_at = %s
"""

# A different lease means that another relay has taken the row over; leave it alone. In a transaction that is open since
# the claim, which has no lease, no other relay can have taken it over.
MINE = "{table}.available_at = coalesce(%s, {table}.available_at)"

LOST = (
    "another program changed them, or their lease ran out, so they may be published again; if a batch takes that long, "
    "raise OUTBOX['CLAIM_TIMEOUT']"
)
"""Why claimed messages cannot be settled, and the remedy."""

ERROR = f"""error = json_extract(settled.value, '$.error'),
            error_class = json_extract(settled.value, '$.error_class'),
            first_error_at = coalesce(first_error_at, {NOW}), last_error_at = {NOW}"""

# The newest attempt comes first, and the oldest is cut off the end.
HISTORY = f"""(
        SELECT json_group_array(json(attempt)) FROM (
            SELECT json_object(
                'at', strftime('%%Y-%%m-%%dT%%H:%%M:%%fZ', 'now'),
                'error_class', json_extract(settled.value, '$.error_class'),
                'error', substr(json_extract(settled.value, '$.error'), 1, {MAX_HISTORY_ERROR_LENGTH})
            ) AS attempt
            UNION ALL
            SELECT * FROM (
                SELECT value FROM json_each({{table}}.history)
                WHERE type = 'object' ORDER BY key LIMIT {MAX_HISTORY - 1}
            )
        )
    )"""

# If its type is no longer paused, a message stays leased, and is then released.
HOLD = f"""
UPDATE {{table}} SET available_at = %s
WHERE id IN (SELECT value FROM json_each(%s)) AND {MINE} AND EXISTS (
    SELECT 1 FROM {{pauses}} pause
    WHERE pause.publisher = {{table}}.publisher AND pause.type = {{table}}.type AND pause.resumed_at IS NULL
)
"""

# Without a condition, SQLite takes ON for a part of a join.
INSERT_ROWS = f"""INSERT INTO {{table}} (
    message_id, type, topic, "key", partition, blocks_key, payload, headers, publisher, occurred_at, available_at,
    attempts, error, error_class
)
SELECT json_extract(value, '$.message_id'), json_extract(value, '$.type'), json_extract(value, '$.topic'),
    json_extract(value, '$.key'), json_extract(value, '$.partition'), json_extract(value, '$.partition') > 0,
    json_extract(value, '$.payload'), json_extract(value, '$.headers'), json_extract(value, '$.publisher'),
    coalesce(json_extract(value, '$.occurred_at'), {NOW}), coalesce(json_extract(value, '$.available_at'), {NOW}),
    0, '', ''
FROM json_each(%s)
WHERE true
ON CONFLICT DO NOTHING
RETURNING message_id
"""

PURGE = f"""
DELETE FROM {{table}} WHERE id IN (
    SELECT id FROM {{table}} WHERE processed_at < {LATER} ORDER BY processed_at, id LIMIT %s
)
"""

BUSY_INTERVAL = 0.1
"""Seconds between two attempts to settle, in addition to the driver's own wait for the lock."""

PROGRESS_STEPS = 10_000
"""Instructions of SQLite's virtual machine between two looks at the clock."""


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A claimed batch. Its mark is the end of its lease, stored in `available_at` and in `held_until`.

    `due` has the original `available_at` of each message that is not settled yet, by id. `end` is the end of the lease
    on the clock of `boot_time`.
    """

    mark: str
    end: float
    due: dict[int, str]
    publisher: str
    partitions: list[int]


class SQLiteStore(Store):
    """Claims by moving `available_at` ahead, so that no transaction is open while a batch is published.

    A transactional claim is the transaction itself: SQLite has one writer at a time.
    """

    DELETED = f"DELETE FROM {{table}} WHERE id IN (SELECT value FROM json_each(%s)) AND {MINE}"
    PROCESSED = f"""
        UPDATE {{table}}
        SET processed_at = {NOW}, available_at = NULL, blocks_key = 0,
            attempts = min(attempts, 2147483646) + 1, error = '', error_class = ''
        WHERE id IN (SELECT value FROM json_each(%s)) AND {MINE}
    """
    FAILED = f"""
        UPDATE {{table}}
        SET failed_at = {NOW}, available_at = NULL, attempts = min(attempts, 2147483646) + 1, {ERROR},
            blocks_key = json_extract(settled.value, '$.blocks_key'), history = {HISTORY},
            dead_lettered_at = iif(json_extract(settled.value, '$.dead_lettered'), {NOW}, NULL)
        FROM json_each(%s) settled
        WHERE {{table}}.id = json_extract(settled.value, '$.id') AND {MINE}
    """
    RETRIED = f"""
        UPDATE {{table}}
        SET history = iif(json_extract(settled.value, '$.counted'), {HISTORY}, history), {ERROR},
            attempts = min(attempts, 2147483647 - json_extract(settled.value, '$.counted'))
                + json_extract(settled.value, '$.counted'),
            available_at = {LATER.replace("%s", "json_extract(settled.value, '$.delay')")}
        FROM json_each(%s) settled
        WHERE {{table}}.id = json_extract(settled.value, '$.id') AND {MINE}
    """

    always_sweeps = True
    no_guard = (None,)
    now = NOW
    undelivered = UNDELIVERED

    @contextmanager
    def claim(self, request: ClaimRequest) -> Iterator[Claim]:
        may_lease = self.connection.get_autocommit() and not request.transactional
        claim = self._lease_few(request) if may_lease else None
        if claim is None and not self.fetch(PENDING, [request.publisher])[0][0]:
            # Without a write transaction, which would wait for another one.
            request.cursor.mark_exhausted()
            yield Claim([])
            return
        if request.transactional:
            with super().claim(request) as claim:
                yield claim
            return
        claim = claim or self._lease(request)
        try:
            yield claim
        finally:
            if claim.mark and claim.mark.due:
                self._while_leased(claim.mark, partial(self._release, claim.mark, claim.mark.due))

    def limit_statements(self, seconds: float | None) -> None:
        self.connection.ensure_connection()
        deadline = time.monotonic() + (seconds or 0)
        expired = None if seconds is None else lambda: time.monotonic() > deadline
        self.connection.connection.set_progress_handler(expired, PROGRESS_STEPS)

    def read_unkeyed(self, publisher: str, *, limit: int, max_bytes: int, after: str | None) -> list[Row]:
        return self.fetch(UNKEYED, [publisher, limit, max_bytes])

    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        base = lock_number(publisher, 0)
        rows = self.fetch(LIST_HEADS, [span.after, base, base, publisher, span.until, wanted, max_steps])
        owned = [partition for partition, due, _ in rows if due]
        last, _, steps = rows[-1]
        return OwnedHeads(owned, last, len(owned) < wanted and steps < max_steps, steps, slots_met)

    def read_partitions(
        self, publisher: str, partitions: Sequence[int], *, max_depth: int, max_bytes: int
    ) -> list[Row]:
        queues = self.fetch(QUEUES, [json.dumps(partitions), publisher, max_depth])
        ids = choose((Queued(*row) for row in queues), partitions, max_bytes)
        return self.fetch(READ, [json.dumps(ids)])

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        lease = claim.mark
        if lease is None:
            settled = self.write_states(settlement, None, delete_processed=delete_processed)
            self._hold(settlement.held, None)
            report_lost(claim, settlement.count - settled, CHANGED)
            return
        with_state = set(settlement.ids)
        left = {id: time for id, time in lease.due.items() if id not in with_state}

        def write() -> int:
            settled = self.write_states(settlement, lease.mark, delete_processed=delete_processed)
            settled += self._hold(settlement.held, lease.mark)
            return settled + self._release(lease, left)

        settled = self._while_leased(lease, write)
        # Not before the commit: if that fails, everything is given back at the end of the claim.
        lease.due.clear()
        lease.partitions.clear()
        lost = settlement.count + len(left) - settled
        report_lost(claim, lost, LOST)

    def _while_leased(self, lease: LeasedBatch, write: Callable[[], int]) -> int:
        """Write in a transaction; if another connection keeps the database locked, again while the lease lasts.

        No other relay can have the messages until then, and giving up would publish them twice.
        """
        nested = self.connection.in_atomic_block
        logged = False
        while True:
            try:
                with transaction.atomic(using=self.connection.alias):
                    return write()
            except OperationalError as error:
                if nested or not shows_conflict(error) or boot_time() >= lease.end:
                    raise
                if not logged:
                    logger.warning(
                        "Publisher %r: %s cannot be settled yet, because another connection keeps the database locked. "
                        "Trying again until the claim times out.",
                        lease.publisher,
                        counted(len(lease.due), "message"),
                        event="relay.database_locked",
                        database=self.connection.alias,
                        publisher=lease.publisher,
                        count=len(lease.due),
                    )
                logged = True
            time.sleep(BUSY_INTERVAL)

    def _hold(self, messages: Sequence[Held], mark: str | None) -> int:
        """Make the messages of this claim wait if their types are still paused; return their number."""
        held = 0
        if messages:
            until = self.connection.ops.adapt_datetimefield_value(HELD_BY_PAUSE)
            ids = json.dumps([message.id for message in messages])
            with self.holding():
                held = self.execute(HOLD, [until, ids, mark])
        return held

    def execute_for(self, sql: str, ids: Sequence[int], *params: Any) -> int:
        return self.execute(sql, [json.dumps(ids), *params])

    def read_place(self) -> tuple[str, int]:
        ((now,),) = self.fetch(f"SELECT {NOW}")
        return now, 0

    def list_fresh(self, publisher: str, after: tuple[str, int], *, limit: int) -> list[Fresh]:
        rows = self.fetch(LIST_FRESH, [publisher, *after, limit])
        return [Fresh(partition, tuple(place)) for partition, *place in rows]

    def find_due(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        return {partition for (partition,) in self.fetch(FIND_DUE, [json.dumps(partitions), publisher])}

    def own(self, publisher: str, partitions: Collection[int]) -> set[int]:
        base = lock_number(publisher, 0)
        leased = self.fetch(LEASED, [base, base, json.dumps([*partitions])])
        return set(partitions) - {partition for (partition,) in leased}

    def lock_keys(self, keys: Collection[str]) -> None:
        """Do nothing: a transaction that has written is the only writer until it commits, so ids follow commits."""

    def insert(self, rows: Sequence[NewRow]) -> list[str]:
        return [id for (id,) in self.fetch(INSERT_ROWS, [json.dumps(rows)])]

    def purge(self, older_than: float, limit: int, after: None) -> Purged:
        # Deleted messages leave no index entries behind, so there is no better place to begin than the start.
        return Purged(self.execute(PURGE, [-older_than, limit]), None)

    @contextmanager
    def transaction(self, max_seconds: float, *, transactional: bool) -> Iterator[None]:
        """Open a transaction that writes first and is then the only writer, so no other relay claims what it reads."""
        with transaction.atomic(using=self.connection.alias):
            self.execute(FORGET_LEASES)
            yield

    def _lease_few(self, request: ClaimRequest) -> Claim | None:
        """Lease all due messages if a look finds few of them; return None if an ordinary claim is needed."""
        publisher = request.publisher
        messages = request.find_few(lambda: self.fetch(FIND_FEW, [publisher, publisher]))
        if messages is None:
            return None
        request.cursor.mark_exhausted()
        if not messages:
            return Claim([])
        end = boot_time() + request.max_seconds
        due = {message.id: message.available_at for message in messages}
        base = lock_number(publisher, 0)
        try:
            with transaction.atomic(using=self.connection.alias):
                rows = self.fetch(LEASE_FEW, [request.max_seconds, json.dumps([*due.items()]), base])
                if len(rows) < len(due):
                    transaction.set_rollback(True, using=self.connection.alias)
                    return None
                mark = str(rows[0][-1])
                partitions = sorted({message.partition for message in messages if message.partition})
                if partitions:
                    self.execute(LEASE_PARTITIONS, [base, mark, json.dumps(partitions)])
        except DatabaseError as error:
            if not shows_refused_row(error):
                raise
            return None
        return Claim(read_messages(sorted(rows)), LeasedBatch(mark, end, due, publisher, partitions))

    def _lease(self, request: ClaimRequest) -> Claim:
        publisher, max_seconds = request.publisher, request.max_seconds
        end = boot_time() + max_seconds
        with self.transaction(max_seconds, transactional=False):
            rows = self.read_batch(request)
            if not rows:
                return Claim([])
            due = {row[0]: row[SIZE + 1] for row in rows}
            try:
                mark = self._lease_rows([*due], max_seconds)
            except DatabaseError as error:
                if not shows_refused_row(error):
                    raise
                refused = self.isolate_refused([*due], lambda ids: self._lease_rows(ids, max_seconds))
                transaction.set_rollback(True, using=self.connection.alias)
                return Claim([], refused=refused)
            partitions = sorted({row[-1] for row in rows if len(row) > SIZE + 2})
            if partitions:
                self.execute(LEASE_PARTITIONS, [lock_number(publisher, 0), mark, json.dumps(partitions)])
        return Claim(read_messages(rows), LeasedBatch(mark, end, due, publisher, partitions))

    def _lease_rows(self, ids: Sequence[int], seconds: float) -> str:
        """Write the end of a lease into the rows of messages, and return it."""
        leased = dict(self.fetch(LEASE, [seconds, json.dumps(ids)]))
        if len(leased) < len(ids):
            raise IntegrityError(f"{SKIPPED} {some_ids(id for id in ids if id not in leased)}")
        return str(leased[ids[0]])

    def _release(self, lease: LeasedBatch, due: dict[int, str]) -> int:
        """Give back the messages that are still leased, and the partitions; return the number of messages."""
        released = 0
        if due:
            released = self.execute(RELEASED, [json.dumps([*due.items()]), lease.mark])
        if lease.partitions:
            base = lock_number(lease.publisher, 0)
            self.execute(RELEASE_PARTITIONS, [base, json.dumps(lease.partitions), lease.mark])
        return released
