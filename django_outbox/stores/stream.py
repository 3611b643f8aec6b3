"""The stream of a publisher on PostgreSQL: messages that are delivered by moving one position, without an UPDATE each.

A streamed message has no time: no `available_at`, `processed_at` or `failed_at`. It has the number of the
transaction that wrote it. The position is a snapshot: what is visible now and was not visible in it is new. This is the
idea of PgQ: its batches lie between two snapshots (https://wiki.postgresql.org/wiki/PGQ_Tutorial). A message that is
committed late is new whenever that is, so nothing is looked for twice and nothing is missed.

Messages that are new together are delivered by their ids. If they are too many to be listed at once, the snapshot in
which they are visible is kept as a page, and the position within the page is an id.
"""

import datetime
from bisect import bisect_right
from collections.abc import Collection, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import IntegrityError

from django_outbox.db.functions import SERVER, WRITER
from django_outbox.db.snapshots import NOTHING, Snapshot
from django_outbox.models import OutboxMessage, StreamPosition
from django_outbox.stores.base import SKIPPED
from django_outbox.stores.claiming import Row
from django_outbox.stores.postgresql import BATCH, FIND_SEQUENCE, PostgreSQLStore, array, visible
from django_outbox.stores.rows import NONE, Purged
from django_outbox.utils.text import some_ids

IS_STREAMED = "available_at IS NULL AND processed_at IS NULL AND failed_at IS NULL"

# The same condition, as the planner does not connect it with the index of streamed messages.
IS_STREAMED_BY_ID = "coalesce(available_at, processed_at, failed_at) IS NULL"

COPIED = "copied"
"""Stands for the server of a copied position. A physical copy has the same identifier as the original."""

# A row that a dump or logical replication has copied was written by another transaction than the one that moved it.
POSITION = f"""
SELECT ctid::text, CASE WHEN server = '' OR xmin = xid::xid THEN server ELSE '{COPIED}' END,
    passed, page, page_start, page_end, last_id,
    CASE WHEN xmin = xid::xid THEN '' ELSE {WRITER.format(row="")}::text END
FROM {{positions}} WHERE publisher = %s"""

# By its address if possible: while a transaction holds an old snapshot, a search steps over all versions of the row.
LOCK = f"{POSITION} AND ctid = %s::tid FOR UPDATE SKIP LOCKED"
FIND_AND_LOCK = f"{POSITION} FOR UPDATE SKIP LOCKED"

# The snapshot of the statement does not name its own transaction; its messages are not passed before it commits.
CURRENT = "SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned()::text"

# The messages of the transactions behind the end of a snapshot, and of the transactions that were running in it.
NEW = f"""(
    (
        SELECT id, xid FROM {{table}} WHERE publisher = %s AND {IS_STREAMED} AND xid >= %s::xid8
        ORDER BY publisher, xid, id LIMIT %s
    )
    UNION ALL
    (
        SELECT message.* FROM unnest(%s::xid8[]) late CROSS JOIN LATERAL (
            SELECT id, xid FROM {{table}} WHERE publisher = %s AND {IS_STREAMED} AND xid >= late AND xid <= late
            ORDER BY publisher, xid, id LIMIT %s
        ) message
    )
) new"""

# From the newest one back, so that it reads what is delivered of a page only if less than the limit is ahead.
NEWEST = NEW.replace("publisher, xid, id", "publisher DESC, xid DESC, id DESC")

LIST_NEW = f"{CURRENT}, ARRAY(SELECT id FROM {NEW} LIMIT %s)"

HAS_NEW = {
    "outbox_new(text, xid8, xid8[])": f"{CURRENT}, EXISTS (SELECT FROM {NEW})" % ("$1", "$2", 1, "$3", "$1", 1),
}
"""The prepared statement that finds whether anything is new, and the snapshot in which that is so."""

# Not by the primary key, which `min(id)` would follow from the oldest message on.
FIND_START = f"""
SELECT coalesce(min(id + 0), 0) FROM {{table}}
WHERE publisher = %s AND {IS_STREAMED} AND xid >= %s::xid8 AND pg_visible_in_snapshot(xid, %s)
"""

# In the order of the primary key, which the planner might leave if it knew how few of the rows are new.
LIST_PAGE = f"""
SELECT ARRAY(
    SELECT id FROM (
        (
            SELECT id FROM {{table}}
            WHERE id >= %s AND CASE
                WHEN publisher = %s AND {IS_STREAMED_BY_ID} AND xid >= %s::xid8
                THEN pg_visible_in_snapshot(xid, %s)
                ELSE false
            END
            ORDER BY id LIMIT %s
        )
        UNION ALL
        (
            SELECT message.id FROM unnest(%s::xid8[]) late CROSS JOIN LATERAL (
                SELECT id FROM {{table}}
                WHERE publisher = %s AND {IS_STREAMED} AND xid >= late AND xid <= late AND id >= %s
                ORDER BY publisher, xid, id LIMIT %s
            ) message WHERE pg_visible_in_snapshot(late, %s)
        )
    ) page ORDER BY id LIMIT %s
)
"""

FIND_MESSAGE = f"""
SELECT id FROM {{table}} WHERE publisher = %s AND {IS_STREAMED} ORDER BY publisher, xid, id LIMIT 1
"""

# A message waits for an earlier one of its key that is in the table. Mostly there is none at all.
WAITS = """partition > 0
    AND (SELECT EXISTS (SELECT FROM {table} WHERE publisher = %s AND blocks_key))
    AND EXISTS (
        SELECT FROM {table} earlier
        WHERE earlier.publisher = message.publisher AND earlier.blocks_key
            AND earlier.partition = message.partition AND earlier.id < message.id
    )"""

# Nothing at all if the rows are large, or compressed, so that the text may be much larger than what is stored. The
# windows that cut a batch at a size cost PostgreSQL several times as much as reading it, and so does a list of ids.
READ_SMALL = f"""
SELECT id, message_id::text, type, topic, key, payload::text, headers::text, occurred_at AT TIME ZONE 'UTC', attempts,
    error_class, 0, {WAITS}
FROM {{table}} message
WHERE id >= %s AND id <= %s AND id + 0 = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID} AND (
    SELECT sum(pg_column_size(payload) + pg_column_size(headers)) <= %s
        AND max(coalesce(pg_column_compression(payload), pg_column_compression(headers))) IS NULL
    FROM {{table}} WHERE id >= %s AND id <= %s
)
ORDER BY id
"""

DENSE = 2
"""Read a range of ids only if it spans at most this many ids per wanted one."""

READ = BATCH.format(
    order="id",
    carried="waits",
    extra=", waits",
    source=f"""(
                    SELECT *, {WAITS} AS waits FROM {{table}} message
                    WHERE id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}
                ) streamed""",
)

TEXTS = itemgetter(5, 6)
"""The payload and the headers of a row."""

MOVE = """
UPDATE {positions}
SET server = %s, passed = %s, page = %s, page_start = %s, page_end = %s, last_id = %s, relay = %s,
    xid = pg_current_xact_id(), moved_at = statement_timestamp()
WHERE ctid = %s::tid AND publisher = %s RETURNING ctid::text
"""

TO_TABLE = "UPDATE {table} SET available_at = statement_timestamp(), blocks_key = partition > 0, xid = NULL WHERE"

MOVE_TO_TABLE = f"{TO_TABLE} id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}"

# Those behind a refused message of their key wait until the position has passed it, as delayed ones do.
MOVE_TO_WAIT = MOVE_TO_TABLE.replace(
    "NULL",
    """CASE WHEN partition IN (
    SELECT partition FROM {table} WHERE id = ANY(%s::bigint[]) AND partition > 0
) THEN xid END""",
    1,
)

# After a restore, a message that was written since has a greater id, whatever the number of its transaction is.
AHEAD = """(id > %s OR NOT pg_visible_in_snapshot(xid, %s)
    AND (%s = '' OR id > %s OR NOT pg_visible_in_snapshot(xid, nullif(%s, '')::pg_snapshot)))"""

FIND_STREAMED = f"SELECT id FROM {{table}} WHERE id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}"

MOVE_ONE = f"{TO_TABLE} id = %s AND {IS_STREAMED_BY_ID} AND {AHEAD}"

# Logical replication does not copy the values of sequences. Messages of this server may have got the ids of deleted
# ones: until the sequence is set, all up to its value; and those that were written after the position was copied.
RESTORED = f"""({AHEAD}
    OR id <= coalesce((SELECT last_value FROM {{sequence}} WHERE last_value < %s), 0)
    OR (xid > nullif(%s, '')::xid8 AND xid <= {WRITER.format(row="")}) IS TRUE)"""

LIST_RESTORED = f"SELECT id FROM {{table}} WHERE publisher = %s AND {IS_STREAMED} AND {RESTORED} ORDER BY id LIMIT %s"

RESTORED_TO_TABLE = f"{TO_TABLE} id IN ({LIST_RESTORED})"

MEASURE = f"SELECT count(*), {SERVER} FROM {NEWEST} WHERE {AHEAD}"

BEHIND_TO_TABLE = f"""
UPDATE {{table}} SET processed_at = statement_timestamp(), xid = NULL
WHERE id IN (
    SELECT id FROM {{table}} WHERE publisher = %s AND {IS_STREAMED} AND NOT {RESTORED}
    ORDER BY publisher, xid LIMIT %s
)
"""

# Delayed messages with a key wait until the stream has passed their transaction.
TABLE_FROM_ELSEWHERE = """
UPDATE {table} SET xid = NULL WHERE id IN (
    (
        SELECT id FROM {table}
        WHERE publisher = %s AND blocks_key AND available_at IS NOT NULL AND xid IS NOT NULL LIMIT %s
    )
    UNION ALL
    (SELECT id FROM {table} WHERE publisher = %s AND failed_at IS NOT NULL AND xid IS NOT NULL LIMIT %s)
)
"""

# Looks at the oldest ones only: whether a message is old is not in the index.
OLD = f"""
SELECT id, xid::text AS at, occurred_at < statement_timestamp() - %s * interval '1 second' FROM {{table}}
WHERE publisher = %s AND {IS_STREAMED} AND xid >= %s::xid8 AND xid < %s::xid8
    AND {{visible}} ORDER BY publisher, xid, id LIMIT %s
"""

PURGE = f"DELETE FROM {{table}} WHERE id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}"

PROCESSED_TO_TABLE = f"""
UPDATE {{table}} SET processed_at = occurred_at, xid = NULL WHERE id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}
"""

FIND_SERVER = f"SELECT {SERVER}"


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """A position as it is stored; `StreamPosition` has the meaning of its parts. By default, the beginning of a stream.

    Attributes:
        address: where its row is; it changes whenever the position moves.
        copied: the transaction that copied it to this server; empty if a relay has moved it here.
    """

    address: str = ""
    server: str = ""
    passed: str = NOTHING
    page: str = ""
    page_start: int = 0
    page_end: int = 0
    last_id: int = 0
    copied: str = ""

    @property
    def of_states(self) -> list[Any]:
        """The parameters of `AHEAD`."""
        return [self.last_id, self.passed, self.page, self.page_end, self.page]

    @property
    def of_restored(self) -> list[Any]:
        """The parameters of `RESTORED`."""
        return [*self.of_states, self.last_id, self.copied]


@dataclass(frozen=True, slots=True)
class Listing:
    """New messages in the order in which they are delivered.

    Attributes:
        position: the position behind which they begin.
        page: the snapshot in which they are visible.
    """

    position: StoredPosition
    page: str
    ids: Sequence[int]
    complete: bool

    def after(self, id: int) -> "Listing":
        """Return the listing after the messages up to this id are delivered. Its position is not stored yet."""
        ids = self.ids[bisect_right(self.ids, id) :]
        last_id = max(self.position.last_id, id)
        if self.complete and not ids:
            position = replace(self.position, passed=self.page, page="", page_start=0, page_end=0, last_id=last_id)
        else:
            position = replace(self.position, page=self.page, page_end=id, last_id=last_id)
        return replace(self, position=position, ids=ids)


class Waiting(NamedTuple):
    """The messages of a stream that are not delivered, as far as they were counted."""

    number: int = 0
    more: bool = False
    oldest: datetime.datetime | None = None


class Stream:
    """One publisher's stream, over one Django connection."""

    def __init__(self, store: PostgreSQLStore, publisher: str, relay: str = "") -> None:
        self._store = store
        self._publisher = publisher
        self._relay = relay

    def lock(self, address: str) -> StoredPosition | None:
        """Lock the position until the transaction ends; return None if another relay has it, or if there is none."""
        rows = self._store.fetch(LOCK, [self._publisher, address]) if address else []
        rows = rows or self._store.fetch(FIND_AND_LOCK, [self._publisher])
        return StoredPosition(*rows[0]) if rows else None

    def create(self) -> None:
        """Begin the stream at its beginning, unless it has a position already."""
        rows = StreamPosition.objects.using(self._store.connection.alias)
        rows.bulk_create([StreamPosition(publisher=self._publisher)], ignore_conflicts=True)

    def find_position(self) -> StoredPosition | None:
        rows = self._store.fetch(POSITION, [self._publisher])
        return StoredPosition(*rows[0]) if rows else None

    def has_messages(self) -> bool:
        """Return whether there are streamed messages, delivered or not."""
        return bool(self._store.fetch(FIND_MESSAGE, [self._publisher]))

    def list_new(self, position: StoredPosition, limit: int) -> Listing:
        """List at most `limit` messages from a position on.

        A page that is in progress is continued. If more than `limit` messages are new, a page begins.
        """
        if position.page:
            return self._list_page(position, limit)
        page, ids = self._list_all(position, limit + 1)
        if len(ids) <= limit:
            return Listing(position, page, ids, complete=True)
        ((start,),) = self._store.fetch(FIND_START, [self._publisher, str(Snapshot.read(position.passed).end), page])
        return self._list_page(replace(position, page=page, page_start=start, page_end=0), limit)

    def _list_all(self, position: StoredPosition, limit: int) -> tuple[str, list[int]]:
        """List what is new, and the snapshot in which it is visible; any `limit` messages if there are more."""
        ((text, own, ids),) = self._store.fetch(LIST_NEW, [*self._new(position, limit), limit])
        return str(Snapshot.read(text, own)), sorted(ids)

    def find_passed(self, passed: str) -> str | None:
        """Return a newer snapshot that has passed like this one; None if something is new, or if that is unknown."""
        snapshot = Snapshot.read(passed)
        arguments = [self._publisher, str(snapshot.end), array(snapshot.running)]
        rows = self._store.fetch_prepared(HAS_NEW, "outbox_new", arguments)
        if rows is None:
            return None
        ((text, own, is_new),) = rows
        return None if is_new else str(Snapshot.read(text, own))

    def _new(self, position: StoredPosition, limit: int) -> list[Any]:
        """Return the parameters of `NEW`."""
        passed = Snapshot.read(position.passed)
        return [self._publisher, str(passed.end), limit, array(passed.running), self._publisher, limit]

    def _list_page(self, position: StoredPosition, limit: int) -> Listing:
        passed, after = Snapshot.read(position.passed), position.page_end + 1
        new = [max(after, position.page_start), self._publisher, str(passed.end), position.page, limit]
        late = [array(passed.running), self._publisher, after, limit, position.page]
        ((ids,),) = self._store.fetch(LIST_PAGE, [*new, *late, limit])
        return Listing(position, position.page, ids, complete=len(ids) < limit)

    def read(self, ids: Sequence[int], *, max_bytes: int) -> list[Row]:
        """Read streamed messages in the order of their ids, up to a total size and at least one.

        The last column of a row is whether the message waits for an earlier message of its key in the table.
        """
        numbers, first, last = array(ids), ids[0], ids[-1]
        if last - first < DENSE * len(ids):
            rows = self._store.fetch(READ_SMALL, [self._publisher, first, last, numbers, max_bytes // 2, first, last])
            if rows and sum(map(len, chain.from_iterable(map(TEXTS, rows)))) <= max_bytes:
                return rows
        return self._store.fetch(READ, [self._publisher, numbers, 2 * max_bytes, max_bytes])

    def move(self, position: StoredPosition) -> StoredPosition:
        """Store a position, which this transaction has locked, and return it with its new address."""
        values = [
            position.server,
            position.passed,
            position.page,
            position.page_start,
            position.page_end,
            position.last_id,
            self._relay,
        ]
        moved = self._store.fetch(MOVE, [*values, position.address, self._publisher])
        if not moved:
            raise IntegrityError("a trigger or a policy skips changes of the position of a stream without an error")
        return replace(position, address=moved[0][0], copied="")

    def move_to_table(self, ids: Collection[int], refused: Set[int] = NONE) -> None:
        """Make streamed messages pending ones, which are due in the table.

        Args:
            refused: messages that cannot be moved. Others of their keys are due when the position has passed both.

        Raises:
            IntegrityError: a message is still streamed, and the position would pass it.
        """
        parameters = [array(refused)] if refused else []
        if self._store.execute(MOVE_TO_WAIT if refused else MOVE_TO_TABLE, [*parameters, array(ids)]) < len(ids):
            left = [id for (id,) in self._store.fetch(FIND_STREAMED, [array(ids)])]
            if left:
                raise IntegrityError(f"{SKIPPED} {some_ids(left)}")

    def move_one_to_table(self, position: StoredPosition, id: int) -> None:
        """Do the same for one message, unless it is not streamed or is behind the position."""
        self._store.execute(MOVE_ONE, [id, *position.of_states])

    # For operators.

    def measure(self, limit: int) -> Waiting:
        """Count the messages that are not delivered, up to `limit`."""
        position = self.find_position() or StoredPosition()
        ((number, server),) = self._store.fetch(MEASURE, [*self._new(position, limit + 1), *position.of_states])
        first: Sequence[int] = ()
        if position.server not in {"", server}:
            of_restored = [self._publisher, *position.of_restored, limit + 1]
            restored = self._store.fetch(self._with_sequence(LIST_RESTORED, optional=True), of_restored)
            number, first = len(restored), restored[0] if restored else ()
        elif number:
            first = self._list_page(position, 1).ids if position.page else self._list_all(position, 1)[1]
        oldest = OutboxMessage.objects.using(self._store.connection.alias).filter(pk__in=first)
        since = oldest.values_list("occurred_at", flat=True).first() if first else None
        return Waiting(min(number, limit), number > limit, since)

    def purge(self, older_than: float, limit: int, at: str, *, archive: bool) -> Purged:
        """Delete a batch of delivered messages that were enqueued more than that many seconds ago, the oldest first.

        Args:
            at: the transaction at which to begin: `Purged.at` of an earlier batch, or "0".
            archive: make them processed messages of the table instead, because they are archived from there.
        """
        position = self.find_position()
        # The numbers of another server say nothing about the messages of this one.
        if position is None or position.server not in {"", self.find_server()}:
            return Purged(0, None)
        old_ones = OLD.replace("{visible}", visible(position.passed))
        end = Snapshot.read(position.passed).end
        rows = self._store.fetch(old_ones, [older_than, self._publisher, at, str(end), limit])
        old = [id for id, _, is_old in rows if is_old]
        changed = self._store.execute(PROCESSED_TO_TABLE if archive else PURGE, [array(old)]) if old else 0
        at_end = not changed or len(rows) < limit
        return Purged(0 if archive else changed, None if at_end else rows[-1][1])

    # After a restore.

    def find_server(self) -> str:
        """Return the identifier of the server, which numbers the transactions."""
        return str(self._store.fetch(FIND_SERVER)[0][0])

    def settle_in_table(self, position: StoredPosition, limit: int) -> int:
        """Give streamed messages the state in the table that the position has given them, pending ones first.

        Then messages in the table lose the numbers of their transactions. Return the number of messages that were
        changed; 0 if all is done.
        """
        of_restored = [self._publisher, *position.of_restored, limit]
        return (
            self._store.execute(self._with_sequence(RESTORED_TO_TABLE), of_restored)
            or self._store.execute(self._with_sequence(BEHIND_TO_TABLE), of_restored)
            or self._store.execute(TABLE_FROM_ELSEWHERE, [self._publisher, limit] * 2)
        )

    def _with_sequence(self, sql: str, *, optional: bool = False) -> str:
        """Name the sequence of ids, or none if there is none; with `optional`, neither if this role may not read it."""
        ((name, may_read),) = self._store.fetch(FIND_SEQUENCE)
        is_used = name and (may_read or not optional)
        return sql.replace("{sequence}", name if is_used else "(SELECT 0 AS last_value) none")
