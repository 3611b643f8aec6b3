"""PostgreSQL: a claim is a transaction with row locks."""

import datetime
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from django.db import DatabaseError, OperationalError, transaction

from django_outbox.models import MAX_HISTORY, OutboxMessage
from django_outbox.stores.base import CHANGED, LockingStore, report_lost
from django_outbox.stores.claiming import (
    FEW,
    FEW_IN_ALL,
    FEW_OF_KEY,
    LAST_PARTITION,
    NONE_SPARED,
    SLOT_BITS,
    SLOT_SIZE,
    SPARED,
    OwnedHeads,
    Row,
    Span,
)
from django_outbox.stores.locks import key_lock_numbers
from django_outbox.stores.prepared import execute, note_lost, prepare
from django_outbox.stores.rows import (
    MAX_HISTORY_ERROR_LENGTH,
    Backend,
    Claim,
    ClaimRequest,
    NewRow,
    Purged,
    Settlement,
    read_messages,
)
from django_outbox.stores.timeline import Fresh

# The batch is cut twice: generously by the stored sizes, so that no row beyond the limit is read from the TOAST table,
# and then by the sizes of the text. OFFSET keeps the planner from producing each text twice. Sums are taken over rows
# that are already locked, because one SELECT cannot have both a window function and FOR UPDATE.
BATCH = """
SELECT id, message_id::text, type, topic, key, payload, headers, occurred_at AT TIME ZONE 'UTC', attempts, error_class,
    size{extra}
FROM (
    SELECT *, sum(size) OVER (ORDER BY {order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT *, octet_length(payload) + octet_length(headers) AS size
        FROM (
            SELECT id, message_id, type, topic, key, payload::text AS payload, headers::text AS headers, occurred_at,
                attempts, error_class, {carried}
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
    carried="available_at",
    extra=", available_at AT TIME ZONE 'UTC'",
    source="""{table} message
                    WHERE publisher = %s AND NOT blocks_key AND available_at <= statement_timestamp()
                        AND available_at >= %s::timestamp AT TIME ZONE 'UTC' {others}
                    ORDER BY available_at, id
                    LIMIT %s
                    FOR UPDATE SKIP LOCKED""",
)

PUBLISHER_SPACE = "hashtext('{table}'::regclass::oid || ' ' || %s)"
"""The key space of a publisher's advisory locks."""

# A slot is locked at its first due head; if another relay holds the slot, the next probe begins after the whole slot.
# The result is a hint: another relay may have settled the heads before the locks were taken, so READ_PARTITIONS reads
# them again.
OWN_HEADS = f"""
WITH RECURSIVE probe AS (
    SELECT %s::integer AS partition, NULL::boolean AS due, NULL::boolean AS mine, %s::integer AS slots, 0 AS found,
        0 AS step
    UNION ALL
    SELECT head.partition, head.due, slot.mine,
        probe.slots + (known IS NULL AND head.due AND (slot.mine OR probe.slots %% {SPARED} = {SPARED} - 1))::integer,
        probe.found + (head.due AND slot.mine)::integer, probe.step + 1
    FROM probe
    CROSS JOIN LATERAL (
        SELECT partition, coalesce({{due}}, false) AS due,
            CASE WHEN partition >> {SLOT_BITS} = probe.partition >> {SLOT_BITS} THEN probe.mine END AS known
        FROM {{table}} message
        WHERE publisher = %s AND blocks_key AND partition <= %s
            AND partition > CASE
                WHEN probe.mine IS FALSE THEN probe.partition | {SLOT_SIZE - 1} ELSE probe.partition
            END
        ORDER BY partition, id LIMIT 1
    ) head
    CROSS JOIN LATERAL (
        SELECT CASE
            WHEN known IS NOT NULL THEN known
            WHEN NOT head.due THEN NULL
            WHEN probe.slots %% {SPARED} = {SPARED} - 1 THEN false
            ELSE pg_try_advisory_xact_lock({PUBLISHER_SPACE}, head.partition >> {SLOT_BITS})
        END AS mine
    ) slot
    WHERE probe.found < %s AND probe.step < %s
)
SELECT partition, coalesce(due AND mine, false), slots, step FROM probe
WHERE (due AND mine) OR step = (SELECT max(step) FROM probe)
ORDER BY step
"""

# Reads no more of each partition than its share of the stored bytes; the window has the queue's order. A range of one
# partition, not an equality, because only one index has that order. If it were ordered by id alone, the planner might
# scan the primary key when the statistics are old.
#
# A queue ends before its first message that is not due or that another transaction has locked: the number of rows that
# were locked up to there is smaller than its place in the queue. A change that was committed after the statement began
# is seen when the row is locked, because its conditions are checked again then. The rows are joined for each partition
# by itself, and the planner expects few of them, so that it never reads the whole table instead.
READ_PARTITIONS = BATCH.format(
    order="turn, id",
    carried="partition, turn",
    extra=", partition",
    source="""(
                    SELECT message.*, turn, row_number() OVER (PARTITION BY turn ORDER BY id) AS locked
                    FROM unnest(%s::integer[]) WITH ORDINALITY AS owned(own_partition, turn)
                    CROSS JOIN LATERAL (
                        SELECT message.*, place
                        FROM (
                            SELECT address, row_number() OVER up_to_it AS place,
                                sum(stored) OVER up_to_it - stored AS earlier
                            FROM (
                                SELECT ctid AS address, pg_column_size(payload) AS stored FROM {table}
                                WHERE publisher = %s AND blocks_key
                                    AND partition >= own_partition AND partition <= own_partition
                                ORDER BY partition, id LIMIT %s
                            ) queue
                            WINDOW up_to_it AS (ROWS UNBOUNDED PRECEDING)
                        ) queue
                        JOIN {table} message ON message.ctid = address
                        WHERE earlier < %s AND {due}
                        FOR UPDATE OF message SKIP LOCKED
                    ) message
                ) queues WHERE locked = place""",
)

LIST_FRESH = """
SELECT partition, available_at AT TIME ZONE 'UTC', id FROM {table}
WHERE publisher = %s AND blocks_key AND available_at <= statement_timestamp()
    AND (available_at, id) > (%s::timestamp AT TIME ZONE 'UTC', %s)
ORDER BY publisher, blocks_key, available_at, id LIMIT %s
"""

# A refused message that is in the stream is in no queue, and later ones of its key wait for it in the table.
LATER_THAN_STREAMED = """ AND (message.id < {first} OR message.partition NOT IN (
    SELECT partition FROM {{table}}
    WHERE id IN ({ids}) AND coalesce(available_at, processed_at, failed_at) IS NULL
))"""

FIND_DUE = """
SELECT number FROM unnest(%s::integer[]) number
WHERE (
    SELECT {due} FROM {table} message
    WHERE publisher = %s AND blocks_key AND partition >= number AND partition <= number
    ORDER BY partition, id LIMIT 1
)
"""

LOCK_PARTITIONS = f"""
SELECT partition FROM unnest(%s::integer[]) partition
WHERE pg_try_advisory_xact_lock({PUBLISHER_SPACE}, partition >> {SLOT_BITS})
"""

# The newest attempt comes first. The concatenation is an array, whatever the column holds; its end is cut off.
HISTORY = f"""(
                jsonb_build_array(jsonb_build_object(
                    'at', to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
                    'error_class', settled.error_class, 'error', left(settled.error, {MAX_HISTORY_ERROR_LENGTH})
                )) || coalesce(message.history, '[]')
            ) - {MAX_HISTORY}"""

# The fields of `Failed` and `Retried`.
SETTLED = """jsonb_to_recordset(%s::jsonb) AS settled(
            id bigint, error text, error_class text, blocks_key boolean, dead_lettered boolean,
            delay double precision, counted boolean
        )
        WHERE message.id = settled.id AND message.available_at IS NOT NULL"""

ERROR = """error = settled.error, error_class = settled.error_class, last_error_at = statement_timestamp(),
            first_error_at = coalesce(first_error_at, statement_timestamp())"""

# The numbers of slots are not negative.
TURN = f"SELECT pg_advisory_xact_lock({PUBLISHER_SPACE}, -1)"

LOCK_KEYS = "SELECT pg_advisory_xact_lock(%s, slot) FROM unnest(%s::integer[]) slot"

LOCK_SPACE = zlib.crc32(b"django_outbox") - 2**31
"""The key space of these locks, which separates them from other advisory locks."""

READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"

# The limits of a role or a database may be shorter than a batch takes; only version 17 and newer have the last one. How
# long handlers wait for locks is left to the project.
BEGIN = """
SELECT current_setting('transaction_read_only') = 'on', pg_backend_pid(),
    set_config('idle_in_transaction_session_timeout', %s, true), set_config('statement_timeout', '0', true),
    CASE WHEN NOT %s THEN set_config('synchronous_commit', 'off', true) || set_config('lock_timeout', '0', true) END,
    CASE WHEN current_setting('transaction_timeout', true) <> '0' THEN set_config('transaction_timeout', '0', true) END
"""

# Plans that are kept have to suit a table of any size, because it may be empty when they are made.
KEEP_PLANS = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true)"""

# In a session that is read-only, a claim reports that.
HAS_DUE = """
SELECT current_setting('transaction_read_only')::bool OR EXISTS (
    SELECT FROM {table}
    WHERE publisher = %s AND blocks_key = ANY('{t,f}') AND available_at <= statement_timestamp()
)"""

PREPARED_BEGIN = {
    "outbox_begin(text)": BEGIN.replace("%s", "{}").rstrip().format("$1", "false")
    + KEEP_PLANS.replace("\nSELECT", ",\n   "),
}
"""The statement with which a transaction of prepared statements begins."""

CLAIM_FEW = {
    **PREPARED_BEGIN,
    "outbox_due(text)": HAS_DUE.replace("%s", "$1"),
    "outbox_own(text)": f"""
SELECT max(step), set_config('outbox.owned', coalesce(array_agg(partition) FILTER (WHERE own), '{{}}')::text, true)
FROM ({OWN_HEADS % (0, NONE_SPARED, "$1", LAST_PARTITION, "$1", FEW, FEW)}) heads(partition, own, slots, step)""",
    # By its own statement, because it has to see what was committed before the locks were taken.
    "outbox_read(text, bigint)": READ_PARTITIONS
    % ("current_setting('outbox.owned')", "$1", FEW_OF_KEY, f"$2 / {FEW}", "2 * $2", "$2"),
    "outbox_unkeyed(text, bigint, timestamp)": UNKEYED % ("$1", "$3", FEW, "2 * $2", "$2"),
}
"""The statements of a claim of few messages."""

PREPARED = "prepared"
"""The mark of a claim of few messages, whose session has the statements that settle it."""

# The number of a process may be reused.
BACKEND_START = "SELECT backend_start FROM pg_stat_get_activity(pg_backend_pid())"

# Begins after the last batch: while an old snapshot is held, the index entries of deleted messages remain, and a batch
# from the start of the index would step over all of them.
OLD = """
SELECT {columns} FROM {table}
WHERE processed_at < statement_timestamp() - %s * interval '1 second'
    AND (processed_at, id) > (%s::timestamp AT TIME ZONE 'UTC', %s)
ORDER BY processed_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""

PURGE = f"""
WITH old AS ({OLD.replace("{columns}", "id, processed_at")}), deleted AS (
    DELETE FROM {{table}} WHERE id = ANY(ARRAY(SELECT id FROM old))
)
SELECT count(*) OVER (), processed_at AT TIME ZONE 'UTC', id FROM old ORDER BY processed_at DESC, id DESC LIMIT 1
"""

EARLIEST = "-infinity"
"""The earliest time that the column can store."""

FIND_SCHEMAS = """
SELECT nspname, 'django_outbox_' || relnamespace FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE relname = %s AND relkind IN ('r', 'p')
"""

DUE_IN_SCHEMA = """
SELECT %s::text, alias FROM unnest(%s::text[]) alias
WHERE EXISTS (
    SELECT FROM {schema}.{{table}}
    WHERE publisher = alias AND blocks_key = ANY('{{t,f}}') AND available_at <= statement_timestamp()
)"""
"""Names each publisher with messages that are due, or would be if they did not wait for an earlier one of their key."""

MAX_SCHEMAS = 100
"""Maximum number of schemas in one query, which takes about eight locks for each: on the table and its indexes. All
sessions share the server's lock table, which has room for at least 6,400 by default."""

MAX_TIMEOUT = 2**31 - 1
"""Maximum timeout that PostgreSQL accepts, in milliseconds."""


def visible(passed: str) -> str:
    """Return an SQL condition: a message's transaction is visible in a snapshot."""
    return f"pg_visible_in_snapshot(xid, '{passed}')"


def milliseconds(seconds: float) -> str:
    """Return a timeout as PostgreSQL's settings take it; it is never 0, which means none."""
    return str(min(max(round(seconds * 1000), 1), MAX_TIMEOUT))


def array(numbers: Iterable[int]) -> str:
    """Return numbers as the text of a PostgreSQL array; psycopg takes several times as long."""
    return f"{{{','.join(map(str, numbers))}}}"


INSERT_ROWS = """INSERT INTO {table} (
    message_id, type, topic, key, partition, blocks_key, payload, headers, publisher, occurred_at, available_at,
    attempts, error, error_class
)
SELECT message_id, type, topic, key, partition, partition > 0 AND NOT streamed, payload::jsonb, headers::jsonb,
    publisher, COALESCE(occurred_at, statement_timestamp()),
    CASE WHEN NOT streamed THEN COALESCE(available_at, statement_timestamp()) END, 0, '', ''
FROM json_to_recordset(%s::json) AS new(
    message_id uuid, type text, topic text, key text, partition integer, payload text, headers text,
    publisher text, occurred_at timestamptz, available_at timestamptz, streamed boolean
)
ON CONFLICT (message_id, publisher) DO NOTHING
RETURNING message_id
"""


FIND_SEQUENCE = """
SELECT name, has_sequence_privilege(name, 'SELECT') FROM pg_get_serial_sequence('{table}', 'id') name
"""

FIND_VALUES = "SELECT last_value, (SELECT max(id) FROM {table}) FROM {sequence}"


# Subscriptions that are disabled write nothing.
FIND_SUBSCRIPTIONS = """
SELECT quote_ident(subname) FROM pg_subscription JOIN pg_subscription_rel ON srsubid = pg_subscription.oid
WHERE subenabled AND srrelid = '{table}'::regclass ORDER BY 1
"""


class PostgreSQLStore(LockingStore):
    """Claims with FOR UPDATE SKIP LOCKED over the partial indexes."""

    now = "statement_timestamp()"

    can_wake = True
    ends_idle_transactions = True
    streams = True

    @contextmanager
    def claim(self, request: ClaimRequest) -> Iterator[Claim]:
        with ExitStack() as stack:
            claim = Claim([]) if self.shows_nothing(request) else None
            if claim is None and request.expects_few:
                claim = self._claim_few(request, stack)
            yield claim or stack.enter_context(super().claim(request))

    def has_due(self, publisher: str) -> bool:
        rows = self.fetch_prepared(self.FEW_STATEMENTS, "outbox_due", [publisher])
        return bool((rows or self.fetch(HAS_DUE, [publisher]))[0][0])

    def fetch_prepared(
        self, statements: Mapping[str, str], name: str, arguments: Sequence[Any]
    ) -> list[tuple[Any, ...]] | None:
        """Execute a prepared statement without a transaction and return its rows; None if the session keeps none."""
        if not prepare(self, statements):
            return None
        driver = self.connection.connection
        try:
            return execute(self.connection, KEEP_PLANS, (name, arguments))[0]
        except DatabaseError as error:
            if not note_lost(driver, error):
                raise
        return None

    def _claim_few(self, request: ClaimRequest, stack: ExitStack) -> Claim | None:
        """Claim few messages with one round trip, until the stack ends; return None if an ordinary claim is needed."""
        if self.connection.in_atomic_block or request.transactional or request.limit < FEW_IN_ALL:
            return None
        cursor, publisher, max_bytes = request.cursor, request.publisher, request.max_bytes // 2
        with ExitStack() as opened:
            begun = self.begin_prepared(
                opened,
                self.FEW_STATEMENTS,
                request.max_seconds,
                ("outbox_own", [publisher]),
                ("outbox_read", [publisher, max_bytes]),
                ("outbox_unkeyed", [publisher, max_bytes, cursor.unkeyed.start() or EARLIEST]),
            )
            if begun is None:
                return None
            backend, [[(steps, _)], keyed, unkeyed] = begun
            cursor.note_few(keyed, unkeyed, steps=steps, max_bytes=max_bytes)
            if keyed or unkeyed or cursor.caught_up:
                stack.push(opened.pop_all())
                return Claim(read_messages([*sorted(keyed), *unkeyed]), PREPARED, backend=backend)
        return None

    def begin_prepared(
        self, stack: ExitStack, statements: Mapping[str, str], max_seconds: float, *calls: tuple[str, Sequence[Any]]
    ) -> tuple[Backend, list[list[Any]]] | None:
        """Begin the transaction of a claim and execute prepared statements in it, with one round trip.

        The transaction ends with the stack. `statements` are `PREPARED_BEGIN` and those of the calls. Return the
        process of the server and the rows of each call; None if the session has not kept the statements.
        """
        if not prepare(self, statements):
            return None
        driver = self.connection.connection
        try:
            with ExitStack() as opened:
                opened.enter_context(transaction.atomic(using=self.connection.alias))
                begin = ("outbox_begin", [milliseconds(max_seconds)])
                [(read_only, pid, *_)], *found = execute(self.connection, READ_COMMITTED, begin, *calls)
                self._require_primary(read_only=read_only)
                stack.push(opened.pop_all())
                return (pid, None), found
        except DatabaseError as error:
            if not note_lost(driver, error):
                raise
        return None

    DELETED = "DELETE FROM {table} WHERE id = ANY(%s::bigint[]) AND available_at IS NOT NULL"
    PROCESSED = """
        UPDATE {table}
        SET processed_at = statement_timestamp(), available_at = NULL, blocks_key = false,
            attempts = least(attempts, 2147483646) + 1, error = '', error_class = ''
        WHERE id = ANY(%s::bigint[]) AND available_at IS NOT NULL
    """
    FEW_STATEMENTS = CLAIM_FEW | {
        "outbox_processed(text)": PROCESSED.replace("%s", "$1"),
        "outbox_deleted(text)": DELETED.replace("%s", "$1"),
    }
    """The statements of a claim of few messages, and those that settle it."""

    FAILED = f"""
        UPDATE {{table}} message
        SET failed_at = statement_timestamp(), available_at = NULL,
            attempts = least(attempts, 2147483646) + 1, {ERROR},
            blocks_key = settled.blocks_key, history = {HISTORY},
            dead_lettered_at = CASE WHEN settled.dead_lettered THEN statement_timestamp() END
        FROM {SETTLED}
    """
    RETRIED = f"""
        UPDATE {{table}} message
        SET available_at = statement_timestamp() + settled.delay * interval '1 second',
            attempts = least(attempts, 2147483647 - settled.counted::integer) + settled.counted::integer,
            history = CASE WHEN settled.counted THEN {HISTORY} ELSE message.history END, {ERROR}
        FROM {SETTLED}
    """

    def begin(self, max_seconds: float, *, transactional: bool = False) -> Backend:
        # If a crash of the server loses a settlement, the messages are only sent again, so its commit need not wait for
        # the disk. The timeout ends the transaction of a relay that hangs.
        self.execute(READ_COMMITTED)
        # Not in one string: a prepared statement, which a project may configure in psycopg, cannot hold several.
        ((read_only, pid, *_),) = self.fetch(BEGIN, [milliseconds(max_seconds), transactional])
        self._require_primary(read_only=read_only)
        # A connection pooler reports another number. Without a pooler, there is a single process.
        is_pooled = pid != self.connection.connection.info.backend_pid
        return pid, self.fetch(BACKEND_START)[0] if is_pooled else None

    def _require_primary(self, *, read_only: bool) -> None:
        if read_only:
            # Claiming keys writes nothing, so messages would be published and never settled.
            raise OperationalError("the session is read-only; a relay needs the primary server")

    def is_taken_id(self, error: BaseException) -> bool:
        # The name of a primary key ends so, unless it was chosen.
        return "_pkey" in str(error).split("\n")[0]

    def check_constraints(self) -> None:
        self.connection.check_constraints()

    def limit_statements(self, seconds: float | None) -> None:
        if not self.connection.in_atomic_block:
            # A limit of the session might stay with another client of a connection pooler.
            return
        # Not the default, which `begin` has replaced.
        self.execute(f"SET LOCAL statement_timeout TO {'0' if seconds is None else milliseconds(seconds)}")

    def limit_lock_waits(self, seconds: float | None) -> None:
        self.execute(f"SET LOCAL lock_timeout TO {'DEFAULT' if seconds is None else milliseconds(seconds)}")

    def wait_for_turn(self, publisher: str, seconds: float) -> bool:
        # In a savepoint, because a wait that takes too long is an error.
        with suppress(OperationalError), transaction.atomic(using=self.connection.alias):
            self.limit_lock_waits(seconds)
            self.fetch(TURN, [publisher])
            self.limit_lock_waits(None)
            return True
        return False

    def name_tables(self, sql: str) -> str:
        return super().name_tables(sql.replace("{due}", self._due))

    @property
    def _due(self) -> str:
        """SQL condition of the messages with a key that are due."""
        streamed = ""
        if self._passed:
            streamed = f"AND (xid IS NULL OR {visible(self._passed)})"
            if self._refused:
                streamed += LATER_THAN_STREAMED.format(first=min(self._refused), ids=",".join(map(str, self._refused)))
        return f"(available_at <= statement_timestamp() {streamed} {{others}})"

    def settle(self, claim: Claim, settlement: Settlement, *, delete_processed: bool) -> None:
        processed = settlement.processed
        if claim.mark != PREPARED or not processed or settlement.count > len(processed) or settlement.held:
            super().settle(claim, settlement, delete_processed=delete_processed)
            return
        name = "outbox_deleted" if delete_processed else "outbox_processed"
        settled = self.execute(f"EXECUTE {name}(%s)", [array(processed)])
        if settled < len(processed):
            self.require_states(settlement)
            report_lost(claim, len(processed) - settled, CHANGED)

    def execute_for(self, sql: str, ids: Sequence[int], *params: Any) -> int:
        return self.execute(sql, [array(ids), *params])

    def read_unkeyed(self, publisher: str, *, limit: int, max_bytes: int, after: datetime.datetime | None) -> list[Row]:
        return self.fetch(UNKEYED, [publisher, after or EARLIEST, limit, 2 * max_bytes, max_bytes])

    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        rows = self.fetch(OWN_HEADS, [span.after, slots_met, publisher, span.until, publisher, wanted, max_steps])
        owned = [partition for partition, own, *_ in rows if own]
        last, _, slots_met, steps = rows[-1]
        return OwnedHeads(owned, last, len(owned) < wanted and steps < max_steps, steps, slots_met)

    def read_partitions(
        self, publisher: str, partitions: Sequence[int], *, max_depth: int, max_bytes: int
    ) -> list[Row]:
        share = max(max_bytes // len(partitions), 1)
        return self.fetch(READ_PARTITIONS, [array(partitions), publisher, max_depth, share, 2 * max_bytes, max_bytes])

    def read_place(self) -> tuple[datetime.datetime, int]:
        ((now,),) = self.fetch("SELECT statement_timestamp() AT TIME ZONE 'UTC'")
        return now, 0

    def list_fresh(self, publisher: str, after: tuple[datetime.datetime, int], *, limit: int) -> list[Fresh]:
        rows = self.fetch(LIST_FRESH, [publisher, *after, limit])
        return [Fresh(partition, tuple(place)) for partition, *place in rows]

    def find_due(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        return {partition for (partition,) in self.fetch(FIND_DUE, [array(partitions), publisher])}

    def own(self, publisher: str, partitions: Collection[int]) -> set[int]:
        return {partition for (partition,) in self.fetch(LOCK_PARTITIONS, [array(partitions), publisher])}

    def lock_keys(self, keys: Collection[str]) -> None:
        if numbers := key_lock_numbers(keys):
            self.fetch(LOCK_KEYS, [LOCK_SPACE, numbers])

    def find_schemas(self) -> dict[str, str]:
        """Return the schemas that have the outbox's table, and their channels."""
        return dict(self.fetch(FIND_SCHEMAS, [OutboxMessage._meta.db_table]))

    def find_due_schemas(self, schemas: Sequence[str], publishers: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the schemas that have messages due, each with the alias of a publisher, by few queries."""
        for start in range(0, len(schemas), MAX_SCHEMAS):
            some = schemas[start : start + MAX_SCHEMAS]
            quoted = [schema.replace('"', '""').replace("%", "%%") for schema in some]
            looks = [DUE_IN_SCHEMA.format(schema=f'"{schema}"') for schema in quoted]
            arguments = [argument for schema in some for argument in (schema, [*publishers])]
            yield from self.fetch(" UNION ALL ".join(looks), arguments)

    def find_subscriptions(self) -> list[str]:
        """Return the names of the subscriptions that write messages of another server into the table."""
        return [name for (name,) in self.fetch(FIND_SUBSCRIPTIONS)]

    def find_values_behind(self) -> tuple[int, int] | None:
        """Return the value of the sequence of ids and the greatest id, if the next ids may be in use."""
        ((sequence, may_read),) = self.fetch(FIND_SEQUENCE)
        if not may_read:
            return None
        ((value, greatest),) = self.fetch(FIND_VALUES.replace("{sequence}", sequence))
        return (value, greatest) if value < (greatest or 0) else None

    def insert(self, rows: Sequence[NewRow]) -> list[str]:
        with self.connection.cursor() as session:
            session.execute(self.name_tables(INSERT_ROWS), [json.dumps(rows)])
            # Usually all of them are new, and reading their IDs takes time.
            if session.rowcount == len(rows):
                return [row["message_id"] for row in rows]
            return [id.hex for (id,) in session.fetchall()]

    def purge(self, older_than: float, limit: int, after: tuple[Any, int] | None) -> Purged:
        rows = self.fetch(PURGE, [older_than, *(after or (EARLIEST, 0)), limit])
        return Purged(rows[0][0], rows[0][1:]) if rows else Purged(0, after)
