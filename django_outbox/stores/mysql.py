"""MySQL and MariaDB: a claim is a transaction with row locks."""

import math
import uuid
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, InterfaceError

from django_outbox.models import MAX_HISTORY
from django_outbox.stores.base import LockingStore
from django_outbox.stores.claiming import (
    FEW,
    FEW_OF_KEY,
    NONE_SPARED,
    SLOT_BITS,
    SLOT_SIZE,
    SLOTS,
    OwnedHeads,
    Queued,
    Row,
    Span,
    choose,
    due_only,
    first_within,
    is_spared,
    lock_number,
)
from django_outbox.stores.locks import KEY_LOCKS, key_lock_numbers
from django_outbox.stores.rows import (
    MAX_HISTORY_ERROR_LENGTH,
    Backend,
    Claim,
    ClaimRequest,
    NewRow,
    Purged,
    read_messages,
)
from django_outbox.stores.timeline import Fresh

UNDELIVERED = "processed_at IS NULL AND blocks_key = 1"
"""SQL condition of the messages in the index of the partitions that are not processed."""

IS_PUBLISHER = "publisher = %s AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s"
"""Compares twice: the column's collation can use the index but takes `Orders` for `orders`."""

# Due messages are read first and then locked by their ids. A locking read of a range would also lock the index entry
# after its end, which may be another relay's message, and two relays would wait for each other.
#
# The index is forced because the optimiser may otherwise scan the primary key.
UNKEYED = f"""
SELECT id, CAST(available_at AS CHAR)
FROM {{table}} message FORCE INDEX (outbox_pending)
WHERE {IS_PUBLISHER} AND blocks_key = 0 AND available_at <= UTC_TIMESTAMP(6) AND available_at >= %s
    AND (available_at > %s OR id > %s) {{others}}
ORDER BY available_at, id
LIMIT %s
"""

HAS_DUE = f"""
SELECT EXISTS (
    SELECT 1 FROM {{table}} FORCE INDEX (outbox_pending)
    WHERE {IS_PUBLISHER} AND blocks_key IN (0, 1) AND available_at <= UTC_TIMESTAMP(6)
)
"""

LOCK = """
SELECT id, LENGTH(payload) + LENGTH(headers) FROM {table} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND available_at <= UTC_TIMESTAMP(6)
FOR UPDATE SKIP LOCKED
"""

# Times are cast because the driver parses them in Python, which takes longer than all other columns together.
READ = """
SELECT id, message_id, type, topic, `key`, payload, headers, CAST(occurred_at AS CHAR), attempts, error_class,
    LENGTH(payload) + LENGTH(headers), CAST(available_at AS CHAR)
FROM {table} FORCE INDEX (PRIMARY) WHERE id IN ({ids})
"""

# Messages that have changed since they were listed, or that another transaction has locked, are left out.
READ_AND_LOCK = f"{READ.rstrip()} AND available_at <= UTC_TIMESTAMP(6) FOR UPDATE SKIP LOCKED"

# MariaDB has no LATERAL and does not choose a loose index scan, so this reads a stretch of the index, and the first row
# of each partition in it.
LIST_HEADS = f"""
SELECT message.`partition`, message.available_at <= UTC_TIMESTAMP(6) {{others}}, size
FROM (
    SELECT MIN(id) AS first, COUNT(*) AS size
    FROM (
        SELECT `partition`, id
        FROM {{table}} FORCE INDEX (outbox_partitions)
        WHERE {UNDELIVERED} AND {IS_PUBLISHER} AND `partition` > %s AND `partition` <= %s
        ORDER BY `partition`, id
        LIMIT %s
    ) stretch
    GROUP BY `partition`
) head
STRAIGHT_JOIN {{table}} message FORCE INDEX (PRIMARY) ON message.id = first
ORDER BY 1
"""

# Two ranges, because a comparison of pairs would read all messages of the first moment each time.
LIST_FRESH = f"""
(SELECT `partition`, CAST(available_at AS CHAR), id FROM {{table}} FORCE INDEX (outbox_pending)
WHERE {IS_PUBLISHER} AND blocks_key = 1 AND available_at = %s AND id > %s
ORDER BY available_at, id LIMIT %s)
UNION ALL
(SELECT `partition`, CAST(available_at AS CHAR), id FROM {{table}} FORCE INDEX (outbox_pending)
WHERE {IS_PUBLISHER} AND blocks_key = 1 AND available_at > %s AND available_at <= UTC_TIMESTAMP(6)
ORDER BY available_at, id LIMIT %s)
"""

# By `id` alone, MySQL would sort the whole queue of the partition.
FIND_DUE = f"""
SELECT number FROM JSON_TABLE('[{{ids}}]', '$[*]' COLUMNS (number INT PATH '$')) wanted
WHERE (
    SELECT available_at <= UTC_TIMESTAMP(6) {{others}} FROM {{table}} message FORCE INDEX (outbox_partitions)
    WHERE {UNDELIVERED} AND {IS_PUBLISHER} AND `partition` = number
    ORDER BY `partition`, id LIMIT 1
)
"""

LOCK_SLOTS = "SELECT number FROM {locks} FORCE INDEX (PRIMARY) WHERE number IN ({ids}) FOR UPDATE SKIP LOCKED"

FIND_SLOT = "SELECT 1 FROM {locks} WHERE number = %s"

ADD_LOCKS = "INSERT IGNORE INTO {{locks}} (number) VALUES {rows}"

# One branch for each partition, because in a recursive query from message to message MySQL reads and sorts a whole key
# at each step. Under READ COMMITTED it sees everything that earlier owners of the slots have settled.
QUEUES = """
SELECT message.`partition`, message.id, message.available_at <= UTC_TIMESTAMP(6) {{others}},
    LENGTH(message.payload) + LENGTH(message.headers)
FROM ({queues}) queue STRAIGHT_JOIN {{table}} message FORCE INDEX (PRIMARY) ON message.id = queue.id
ORDER BY 1, 2
"""

QUEUE = f"""
(SELECT id FROM {{{{table}}}} FORCE INDEX (outbox_partitions)
WHERE {UNDELIVERED} AND {IS_PUBLISHER} AND `partition` = {{partition}}
ORDER BY id LIMIT {{depth}})
"""

# All undelivered messages with a key, and all due ones without, unless there are many.
FIND_FEW = f"""
(SELECT `partition`, id, available_at <= UTC_TIMESTAMP(6), LENGTH(payload) + LENGTH(headers)
FROM {{table}} FORCE INDEX (outbox_partitions)
WHERE {UNDELIVERED} AND {IS_PUBLISHER} ORDER BY `partition`, id LIMIT {FEW * FEW_OF_KEY})
UNION ALL
(SELECT 0, id, TRUE, LENGTH(payload) + LENGTH(headers) FROM {{table}} FORCE INDEX (outbox_pending)
WHERE {IS_PUBLISHER} AND blocks_key = 0 AND available_at <= UTC_TIMESTAMP(6) AND available_at >= %s
ORDER BY available_at, id LIMIT {FEW})
"""

# The slot of a message is locked before the message. MySQL 9.7 refuses to lock rows that are joined with JSON_TABLE.
OWN_AND_READ = READ_AND_LOCK.replace(
    "FROM {table} FORCE INDEX (PRIMARY) WHERE id IN ({ids}) AND",
    """FROM ({few}) few
STRAIGHT_JOIN {locks} FORCE INDEX (PRIMARY) ON number = slot
STRAIGHT_JOIN {table} FORCE INDEX (PRIMARY) ON id = wanted
WHERE""",
)

# All rows exist before any is locked. If one were missing, transactions would lock the gap in its place and then wait
# for each other to insert it.
LOCK_KEYS = "SELECT number FROM {locks} FORCE INDEX (PRIMARY) WHERE number IN ({ids}) ORDER BY number FOR UPDATE"
FIND_KEY_LOCKS = f"SELECT number FROM {{locks}} WHERE number < {KEY_LOCKS}"

FIND_MESSAGES = "SELECT message_id, publisher FROM {{table}} WHERE message_id IN ({ids})"

# Not from JSON_TABLE: for INSERT ... SELECT, MariaDB by default locks the counter of ids until the statement ends, and
# every transaction that enqueues would wait. INSERT IGNORE would turn every other error into a warning, and a lost
# message.
INSERT_ROWS = """INSERT INTO {{table}} (
    message_id, type, topic, `key`, `partition`, blocks_key, payload, headers, publisher, occurred_at, available_at,
    attempts, error, error_class
) VALUES {rows}
ON DUPLICATE KEY UPDATE message_id = {{table}}.message_id
"""

NEW_ROW = """(
    %s, %s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6)), COALESCE(%s, UTC_TIMESTAMP(6)), 0, '', ''
)"""

# Begins after the last batch: while an old snapshot is held, the index entries of deleted messages remain, and a batch
# from the start of the index would step over all of them.
OLD = """
SELECT id, CAST(processed_at AS CHAR) FROM {table} FORCE INDEX (outbox_processed)
WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND AND processed_at >= %s
    AND (processed_at > %s OR id > %s)
ORDER BY processed_at, id LIMIT %s
"""

# If a batch is most of a small table, the optimiser would read all of it and wait for rows that another relay has
# locked, while that relay waits for these. A DELETE from a single table takes no hint.
DELETE = """
DELETE message
FROM JSON_TABLE('[{ids}]', '$[*]' COLUMNS (id BIGINT PATH '$')) listed
STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = listed.id
WHERE message.{state} IS NOT NULL
"""

PURGE = DELETE.replace("{state}", "processed_at")

# The newest attempt comes first, and the oldest is cut off the end.
HISTORY = f"""JSON_REMOVE(
                JSON_ARRAY_INSERT(COALESCE(message.history, JSON_ARRAY()), '$[0]', JSON_OBJECT(
                    'at', DATE_FORMAT(UTC_TIMESTAMP(6), '%%Y-%%m-%%dT%%H:%%i:%%s.%%fZ'),
                    'error_class', settled.error_class, 'error', LEFT(settled.error, {MAX_HISTORY_ERROR_LENGTH})
                )),
                '$[{MAX_HISTORY}]'
            )"""

# The fields of `Failed` and `Retried`.
SETTLED = """JSON_TABLE(
            %s, '$[*]' COLUMNS (
                id BIGINT PATH '$.id', error LONGTEXT PATH '$.error', error_class VARCHAR(255) PATH '$.error_class',
                blocks_key INT PATH '$.blocks_key', dead_lettered INT PATH '$.dead_lettered',
                delay DOUBLE PATH '$.delay', counted BOOLEAN PATH '$.counted'
            )
        ) settled
        STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = settled.id"""

ERROR = """message.error = settled.error, message.error_class = settled.error_class,
            message.last_error_at = UTC_TIMESTAMP(6),
            message.first_error_at = COALESCE(message.first_error_at, UTC_TIMESTAMP(6))"""

EARLIEST = "1000-01-01"
"""The earliest time that the column can store."""

FIRST_STRETCH, MIN_STRETCH, MAX_STRETCH = 512, 8, 4096
"""Rows of the index that one listing of heads reads. A statement costs as much as reading a few hundred rows, so a
jump from each partition to the next only pays if partitions are deeper than that."""

MAX_JUMP = 64
"""Maximum rows that are read to jump from one deep partition to the next."""

MAX_TIMEOUT = 31_536_000
"""Maximum timeout that MariaDB accepts, in seconds."""

_complete: set[tuple[str, ...]] = set()
"""Databases known to have the rows of all key locks."""

_limits: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The settings that sessions have instead of those of the project, by the driver's connections."""

_limited: weakref.WeakSet[Any] = weakref.WeakSet()
"""The driver's connections whose sessions have a limit of statements that `limit_statements` has set."""


class _NoSlots(Exception):
    """The rows of a publisher's slots are missing, because this is their first use or the table was emptied.

    They are not inserted in the claim's transaction, because another relay would have to wait for its end.
    """


class MySQLStore(LockingStore):
    """Claims with FOR UPDATE SKIP LOCKED over forced indexes."""

    DELETED = DELETE.replace("{state}", "available_at")
    PROCESSED = """
        UPDATE {table} FORCE INDEX (PRIMARY)
        SET processed_at = UTC_TIMESTAMP(6), available_at = NULL, blocks_key = 0,
            attempts = LEAST(attempts, 2147483646) + 1, error = '', error_class = ''
        WHERE id IN ({ids}) AND available_at IS NOT NULL
    """
    FAILED = f"""
        UPDATE {SETTLED}
        SET message.failed_at = UTC_TIMESTAMP(6), message.available_at = NULL,
            message.attempts = LEAST(message.attempts, 2147483646) + 1, {ERROR},
            message.blocks_key = settled.blocks_key,
            message.history = {HISTORY},
            message.dead_lettered_at = IF(settled.dead_lettered, UTC_TIMESTAMP(6), NULL)
        WHERE message.available_at IS NOT NULL
    """
    RETRIED = f"""
        UPDATE {SETTLED}
        SET message.available_at = UTC_TIMESTAMP(6) + INTERVAL ROUND(settled.delay * 1000000) MICROSECOND,
            message.attempts = LEAST(message.attempts, 2147483647 - settled.counted) + settled.counted,
            message.history = IF(settled.counted, {HISTORY}, message.history), {ERROR}
        WHERE message.available_at IS NOT NULL
    """

    now = "UTC_TIMESTAMP(6)"
    undelivered = UNDELIVERED
    use_partitions = "FORCE INDEX (outbox_partitions)"
    is_publisher = IS_PUBLISHER

    ends_idle_transactions = True

    def read_settings(self, *names: str) -> dict[str, str]:
        """Return those of these settings of the session that the server knows."""
        return dict(self.fetch(f"SHOW VARIABLES WHERE Variable_name IN ({', '.join(['%s'] * len(names))})", names))

    @contextmanager
    def claim(self, request: ClaimRequest) -> Iterator[Claim]:
        with ExitStack() as stack:
            try:
                claim = stack.enter_context(self._claim(request))
            except _NoSlots:
                self._add_locks(lock_number(request.publisher, slot) for slot in range(SLOTS))
                request.cursor.undo()
                claim = stack.enter_context(self._claim(request))
            yield claim

    @contextmanager
    def _claim(self, request: ClaimRequest) -> Iterator[Claim]:
        """Claim all due messages if a look finds few of them, and otherwise as usual."""
        publisher, cursor = request.publisher, request.cursor
        due: list[Queued] | None = None
        if request.expects_few and self.connection.get_autocommit():
            due = request.find_few(lambda: self.fetch(FIND_FEW, [*[publisher] * 4, cursor.unkeyed.start() or EARLIEST]))
        elif self.shows_nothing(request):
            due = []
        if due is None:
            with super().claim(request) as claim:
                yield claim
        elif due:
            with self.transaction(request.max_seconds, transactional=request.transactional):
                keyed = self._lock_with_slots(publisher, [message for message in due if message.partition])
                unkeyed = self._read([message.id for message in due if not message.partition], READ_AND_LOCK)
                cursor.note_all(unkeyed)
                yield Claim(read_messages([*keyed, *unkeyed]))
        else:
            cursor.note_all([])
            yield Claim([])

    def _lock_with_slots(self, publisher: str, messages: Sequence[Queued]) -> list[Row]:
        """Own the slots of messages that were listed, and read and lock the messages.

        The messages of a partition end before the first that has changed, or that another transaction has locked.
        """
        if not messages:
            return []
        slots = [(message.id, lock_number(publisher, message.partition >> SLOT_BITS)) for message in messages]
        few = " UNION ALL ".join(f"SELECT {wanted} AS wanted, {slot} AS slot" for wanted, slot in slots)
        rows = self.fetch(OWN_AND_READ.replace("{few}", few))
        if not rows and not self.fetch(FIND_SLOT, [slots[0][1]]):
            raise _NoSlots
        locked = {row[0]: row for row in rows}
        queues = due_only(message._replace(due=message.id in locked) for message in messages)
        return sorted(locked[message.id] for message in queues)

    @contextmanager
    def transaction(self, max_seconds: float, *, transactional: bool) -> Iterator[Backend | None]:
        nested = self.connection.in_atomic_block
        if not nested:
            self._limit_session(max_seconds, transactional=transactional)
        try:
            with super().transaction(max_seconds, transactional=transactional) as backend:
                yield backend
        finally:
            if transactional and not nested:
                self.restore_session()

    def _limit_session(self, max_seconds: float, *, transactional: bool) -> None:
        """Set the limits of a claim's transaction, unless the session has them since an earlier claim."""
        self.connection.ensure_connection()
        session = self.connection.connection
        limits = self._limits_of(max_seconds, transactional=transactional)
        if _limits.get(session) != limits:
            self.restore_session()
            # The session keeps the values of the project for the end.
            self._set_session({**{f"@outbox_{name}": f"@@{name}" for name in limits}, **limits})
            _limits[session] = limits

    def restore_session(self) -> None:
        session = self.connection.connection
        if session is not None and (limits := _limits.pop(session, None)):
            with suppress(DatabaseError, InterfaceError):
                self._set_session({name: f"@outbox_{name}" for name in limits})

    def _limits_of(self, max_seconds: float, *, transactional: bool) -> dict[str, Any]:
        """Return the settings with which the server ends the transaction of a relay that hangs, and no other one.

        The limits of a server or a user may be shorter than a batch takes. How long handlers wait for locks is left to
        the project.
        """
        seconds = min(math.ceil(max_seconds), MAX_TIMEOUT)
        # MariaDB's second and third limit override the first, which overrides `wait_timeout`.
        idle = (
            ["idle_transaction_timeout", "idle_readonly_transaction_timeout", "idle_write_transaction_timeout"]
            if self.dialect.is_mariadb
            else ["wait_timeout"]
        )
        lock_waits = {} if transactional else {"innodb_lock_wait_timeout": seconds}
        # Each statement must see what was committed before it, and lock no gaps, which would block INSERTs.
        isolation = {"tx_isolation" if self.dialect.is_mariadb else "transaction_isolation": "'READ-COMMITTED'"}
        return {**dict.fromkeys(idle, seconds), self._statement_limit: 0, **lock_waits, **isolation}

    def _set_session(self, values: Mapping[str, Any]) -> None:
        self.execute(f"SET {', '.join(f'{name} = {value}' for name, value in values.items())}")

    @property
    def _statement_limit(self) -> str:
        # MySQL limits only SELECT.
        return "max_statement_time" if self.dialect.is_mariadb else "max_execution_time"

    def limit_statements(self, seconds: float | None) -> None:
        name, kept = self._statement_limit, "@outbox_unlimited"
        if seconds is not None:
            limit = max(seconds, 0.001)
            keeping = {} if self.connection.connection in _limited else {kept: f"@@{name}"}
            self._set_session({**keeping, name: limit if self.dialect.is_mariadb else round(limit * 1000)})
            _limited.add(self.connection.connection)
        elif self.connection.connection in _limited:
            # Another session, if a handler has closed this one, has no limit of the handler.
            _limited.discard(self.connection.connection)
            self._set_session({name: kept})

    def execute_for(self, sql: str, ids: Sequence[int], *params: Any) -> int:
        return self.execute(_for_ids(sql, ids), params)

    def has_due(self, publisher: str) -> bool:
        return bool(self.fetch(HAS_DUE, [publisher, publisher])[0][0])

    def read_unkeyed(self, publisher: str, *, limit: int, max_bytes: int, after: str | None) -> list[Row]:
        sizes: list[tuple[int, int]] = []
        at, last = after or EARLIEST, 0
        # Half a batch is enough: the few messages left may lie among many that other relays have locked.
        while len(sizes) < max(limit // 2, 1):
            wanted = limit - len(sizes)
            due = self.fetch(UNKEYED, [publisher, publisher, at, at, last, wanted])
            if due:
                locked = dict(self.fetch(_for_ids(LOCK, [id for id, _ in due])))
                sizes += [(id, locked[id]) for id, _ in due if id in locked]
                last, at = due[-1]
            if len(due) < wanted:
                break
        return self._read([id for id, _ in first_within(sizes, max_bytes)])

    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        after, until = span
        owned: list[int] = []
        mine: dict[int, bool] = {}
        steps, stretch = 0, FIRST_STRETCH
        while steps < max_steps:
            rows = self.fetch(LIST_HEADS, [publisher, publisher, after, until, stretch])
            steps += len(rows)
            due = [partition for partition, is_due, _ in rows if is_due]
            while due and len(owned) < wanted:
                room = wanted - len(owned)
                near, due = due[:room], due[room:]
                slots_met += self._lock_slots(publisher, near, mine, slots_met)
                owned += [partition for partition in near if mine[partition >> SLOT_BITS]]
            if len(owned) == wanted:
                return OwnedHeads(owned, owned[-1], at_end=False, steps=steps, slots_met=slots_met)
            if sum(size for *_, size in rows) < stretch:
                return OwnedHeads(owned, until, at_end=True, steps=steps, slots_met=slots_met)
            after = rows[-1][0]
            if mine.get(after >> SLOT_BITS) is False:
                after |= SLOT_SIZE - 1
            # Deep partitions are better skipped by a jump from each to the next, shallow ones read in a long stretch.
            room = (wanted - len(owned)) * stretch // len(rows)
            stretch = max(min(2 * stretch, room if len(rows) > 1 else MAX_JUMP, MAX_STRETCH), MIN_STRETCH)
        return OwnedHeads(owned, after, at_end=False, steps=steps, slots_met=slots_met)

    def _add_locks(self, numbers: Iterable[int]) -> None:
        self.execute(ADD_LOCKS.format(rows=", ".join(f"({number})" for number in numbers)))

    def _lock_slots(self, publisher: str, partitions: Iterable[int], mine: dict[int, bool], slots_met: int) -> int:
        """Lock the slots of partitions, record in `mine` which are locked, and return how many free slots were met."""
        wanted: list[int] = []
        spared = 0
        for slot in dict.fromkeys(partition >> SLOT_BITS for partition in partitions):
            if slot in mine:
                continue
            mine[slot] = False
            if is_spared(slots_met + len(wanted) + spared):
                spared += 1
            else:
                wanted.append(lock_number(publisher, slot))
        locked = self.fetch(_for_ids(LOCK_SLOTS, wanted)) if wanted else []
        if wanted and not locked and not self.fetch(FIND_SLOT, wanted[:1]):
            raise _NoSlots
        for (number,) in locked:
            mine[number - lock_number(publisher, 0)] = True
        return len(locked) + spared

    def read_partitions(
        self, publisher: str, partitions: Sequence[int], *, max_depth: int, max_bytes: int
    ) -> list[Row]:
        branches = (QUEUE.format(partition=partition, depth=max_depth) for partition in partitions)
        names = [publisher, publisher] * len(partitions)
        queues = [Queued(*row) for row in self.fetch(QUEUES.format(queues=" UNION ALL ".join(branches)), names)]
        locked: dict[int, Row] = {}
        while ids := choose(queues, partitions, max_bytes):
            wanted = [id for id in ids if id not in locked]
            locked |= {row[0]: row for row in self._read(wanted, READ_AND_LOCK)}
            if all(id in locked for id in wanted):
                break
            # Without the messages that could not be locked, and those behind them, others may have room.
            lost = {id for id in wanted if id not in locked}
            queues = [message._replace(due=message.due and message.id not in lost) for message in queues]
        parts = {message.id: message.partition for message in queues}
        return [(*locked[id], parts[id]) for id in ids]

    def _read(self, ids: Sequence[int], statement: str = READ) -> list[Row]:
        rows = {row[0]: row for row in self.fetch(_for_ids(statement, ids))} if ids else {}
        return [rows[id] for id in ids if id in rows]

    def read_place(self) -> tuple[str, int]:
        ((now,),) = self.fetch("SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
        return now, 0

    def list_fresh(self, publisher: str, after: tuple[str, int], *, limit: int) -> list[Fresh]:
        at, last = after
        params = [publisher, publisher, at, last, limit, publisher, publisher, at, limit]
        rows = sorted(self.fetch(LIST_FRESH, params), key=lambda row: row[1:])
        return [Fresh(partition, tuple(place)) for partition, *place in rows[:limit]]

    def find_due(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        return {number for (number,) in self.fetch(_for_ids(FIND_DUE, partitions), [publisher, publisher])}

    def own(self, publisher: str, partitions: Collection[int]) -> set[int]:
        mine: dict[int, bool] = {}
        self._lock_slots(publisher, partitions, mine, NONE_SPARED)
        return {partition for partition in partitions if mine[partition >> SLOT_BITS]}

    def lock_partitions(self, publisher: str, partitions: Collection[int]) -> set[int]:
        try:
            return self.own(publisher, partitions)
        except _NoSlots:
            # No relay has claimed any key of this publisher.
            return set(partitions)

    def lock_keys(self, keys: Collection[str]) -> None:
        # GET_LOCK belongs to the session and would outlive a rollback; a row lock ends with the transaction.
        if numbers := key_lock_numbers(keys):
            statement = _for_ids(LOCK_KEYS, numbers)
            # Before any lock is taken: a missing row could only be locked out of order, or as a gap.
            if self._name not in _complete:
                self._add_key_locks_apart()
            while len(self.fetch(statement)) < len(numbers):
                # The table was emptied. This transaction may have locked the gaps, so that no other one can insert.
                _complete.discard(self._name)
                self._add_locks(numbers)

    def add_key_locks(self) -> None:
        there = {number for (number,) in self.fetch(FIND_KEY_LOCKS)}
        if missing := sorted(set(range(KEY_LOCKS)) - there):
            self._add_locks(missing)

    def insert(self, rows: Sequence[NewRow]) -> list[str]:
        # The INSERT would wait for a relay that has claimed the first message. Under SERIALIZABLE, however, a read
        # locks the gap where it finds nothing, and transactions would wait for each other.
        if self.connection.isolation_level != "serializable":  # type: ignore[attr-defined]
            ids = [row["message_id"] for row in rows]
            found = self.fetch(FIND_MESSAGES.format(ids=", ".join(["%s"] * len(ids))), ids)
            # MySQL stores the ID as text.
            known = {(uuid.UUID(str(id)).hex, publisher) for id, publisher in found}
            missing: dict[tuple[str, str], NewRow] = {}
            for row in rows:
                if (pair := (row["message_id"], row["publisher"])) not in known:
                    missing.setdefault(pair, row)
            rows = [*missing.values()]
        if rows:
            values: list[object] = []
            for row in rows:
                values += (row["message_id"], row["type"], row["topic"], row["key"], row["partition"])
                values += (row["partition"] > 0, row["payload"], row["headers"], row["publisher"])
                values += (row["occurred_at"], row["available_at"])
            self.execute(INSERT_ROWS.format(rows=", ".join([NEW_ROW] * len(rows))), values)
        return [row["message_id"] for row in rows]

    def _add_key_locks_apart(self) -> None:
        """Add the rows in a short transaction that holds no other lock."""
        with closing(self.connection.copy()) as connection:
            connection.set_autocommit(True)
            MySQLStore(connection).add_key_locks()
        _complete.add(self._name)

    @property
    def _name(self) -> tuple[str, ...]:
        return tuple(str(self.connection.settings_dict[part]) for part in ("HOST", "PORT", "NAME"))

    def purge(self, older_than: float, limit: int, after: tuple[str, int] | None) -> Purged:
        time, id = after or (EARLIEST, 0)
        rows = self.fetch(OLD, [round(older_than * 1_000_000), time, time, id, limit])
        if not rows:
            return Purged(0, after)
        last, time = rows[-1]
        return Purged(self.execute_for(PURGE, [id for id, _ in rows]), (time, last))


def _for_ids(sql: str, ids: Collection[int]) -> str:
    """Write ids into a statement directly, because the driver takes several times as long."""
    return sql.replace("{ids}", ",".join(map(str, ids)))
