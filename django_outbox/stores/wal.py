"""PostgreSQL's log as a stream's feed: its publication and its slot, and the state of what it brings."""

import re
import zlib
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, NamedTuple

from django_outbox.db.snapshots import Snapshot
from django_outbox.stores.postgresql import PREPARED_BEGIN, PostgreSQLStore, array
from django_outbox.stores.rows import Backend
from django_outbox.stores.stream import CURRENT, IS_STREAMED_BY_ID, LOCK, WAITS, StoredPosition

PUBLICATION = "django_outbox"
"""The name of the publication, which `outbox_publication` creates."""

COLUMNS = ("xid", "publisher", "id", "message_id", "type", "topic", "key", "payload", "headers", "occurred_at")
"""The columns of `OutboxMessage` that the publication must have."""

ADMIT_ROLE = "Run: ALTER ROLE {role} REPLICATION; on Amazon RDS: GRANT rds_replication TO {role}"
SET_UP = 'Run "manage.py outbox_publication --database={alias}" as the owner of the table'

# Changes if the publication or its entry for the table does, or if the table is created again.
PUBLISHED = f"""
SELECT concat_ws(' ', publication.oid, publication.xmin, entry.oid, entry.xmin)
FROM pg_publication publication
LEFT JOIN pg_publication_rel entry ON entry.prpubid = publication.oid AND entry.prrelid = '{{table}}'::regclass
WHERE pubname = '{PUBLICATION}'
"""

# The place in the log is read after the snapshot was taken. The position is locked, so if this transaction has written
# a message, its number is not new.
INSPECT = f"""
{CURRENT},
    (pg_current_wal_insert_lsn() - '0/0')::bigint,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
    ({PUBLISHED}), coalesce(array_agg(id), '{{}}'), coalesce(array_agg(id) FILTER (WHERE waits), '{{}}')
FROM (
    SELECT id, {WAITS} AS waits FROM {{table}} message WHERE id = ANY(%s::bigint[]) AND {IS_STREAMED_BY_ID}
) streamed
"""

CLAIM = {
    **PREPARED_BEGIN,
    "outbox_lock_position(text, tid)": LOCK % ("$1", "$2"),
    "outbox_inspect(text, bigint[])": INSPECT % ("$1", "$2"),
}
"""The statements of a claim of messages that the log has brought."""

# A standby has neither the slots of its primary nor the end of the log.
READER = """
SELECT CASE WHEN NOT pg_is_in_recovery() THEN count(*) > 0 END,
    max(CASE WHEN NOT pg_is_in_recovery() THEN pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint END)
FROM pg_replication_slots WHERE slot_name = %s
"""

FIND_TABLE = "SELECT '{table}'::regclass::oid::bigint, current_database()"

# It has no columns if it lacks some of the rows that are inserted into the table.
FIND_PUBLICATION = f"""
SELECT ({PUBLISHED}), coalesce(columns, '{{}}')
FROM pg_publication publication
CROSS JOIN LATERAL (
    SELECT max(attnames::text[]) FILTER (
        WHERE pubinsert AND rowfilter IS NULL AND pg_class.oid = '{{table}}'::regclass
    ) AS columns
    FROM pg_publication_tables published
    JOIN pg_namespace ON nspname = schemaname
    JOIN pg_class ON relnamespace = pg_namespace.oid AND relname = tablename
    WHERE published.pubname = publication.pubname
) published
WHERE pubname = '{PUBLICATION}'
"""

# A relay connects as the role of the session, even if Django assumes another one for its queries. On Amazon RDS,
# membership in a role gives the privilege.
CAPABILITIES = """
SELECT quote_ident(rolname),
    -- Since version 19, a server with "replica" decodes its log while there is a logical slot.
    current_setting('wal_level') = 'logical'
        OR current_setting('wal_level') = 'replica' AND current_setting('server_version_num')::integer >= 190000,
    rolsuper OR rolreplication OR EXISTS (
        SELECT FROM pg_roles rds WHERE rds.rolname = 'rds_replication' AND pg_has_role(role.oid, rds.oid, 'member')
    )
FROM pg_roles role
WHERE rolname = session_user
"""

FIND_NAME = """
SELECT format('%%I.%%I', nspname, relname)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = '{table}'::regclass
"""


class Publication(NamedTuple):
    """The publication as it is now; by default, there is none.

    Attributes:
        columns: the columns of the table of messages in it; none if it does not have all rows.
    """

    identity: str = ""
    columns: Sequence[str] = ()

    @property
    def missing(self) -> Set[str]:
        """The columns that it lacks: all if there is none."""
        return {*COLUMNS} - {*self.columns}


def find_publication(store: PostgreSQLStore) -> Publication:
    rows = store.fetch(FIND_PUBLICATION)
    return Publication(*rows[0]) if rows else Publication()


class Obstacle(NamedTuple):
    """Something that prevents that the log is read; `problem` follows the name of the database in a sentence."""

    problem: str
    remedy: str
    check: str


def find_obstacles(store: PostgreSQLStore) -> Iterator[Obstacle]:
    """Find what prevents a relay with the role of this session from reading the log."""
    if find_spec("psycopg") is None:
        yield Obstacle("is used without psycopg 3", "Install psycopg.", "W053")
    if missing := find_publication(store).missing:
        problem = f"has no publication {PUBLICATION} of inserted rows with the columns {', '.join(sorted(missing))}"
        yield Obstacle(problem, f"{SET_UP.format(alias=store.connection.alias)}.", "W056")
    ((role, is_logical, may_read),) = store.fetch(CAPABILITIES)
    if not is_logical:
        remedy = "Set wal_level = logical in postgresql.conf, and restart the server."
        yield Obstacle("has a wal_level that does not support logical decoding", remedy, "W054")
    if not may_read:
        yield Obstacle(f"does not let the role {role} read the log", ADMIT_ROLE.format(role=role), "W055")


def make_statement(store: PostgreSQLStore) -> str:
    """Return the SQL that creates the publication."""
    ((table,),) = store.fetch(FIND_NAME)
    return f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {table} ({', '.join(COLUMNS)}) WITH (publish = 'insert')"


class Inspection(NamedTuple):
    """The state of the database and of messages that the log has brought.

    Attributes:
        visible: the transactions that are visible.
        lsn: a place in the log behind the commit of everything that is visible.
        timeline: the timeline of the server, which a promoted standby changes.
        published: what identifies the publication as it is now; blank if there is none.
        streamed: the messages that are visible and still streamed.
        waiting: the streamed messages that wait for an earlier message of their key in the table.
    """

    visible: Snapshot
    lsn: int
    timeline: int
    published: str
    streamed: Set[int]
    waiting: Set[int]

    @classmethod
    def read(cls, row: Sequence[Any]) -> "Inspection":
        """Read the row that INSPECT returns."""
        text, own, lsn, timeline, published, streamed, waiting = row
        visible = Snapshot.read(text, own)
        return cls(visible, lsn, timeline, published or "", frozenset(streamed), frozenset(waiting))


class LogQueries:
    """The queries that are needed to follow the log for one publisher's stream."""

    def __init__(self, store: PostgreSQLStore, publisher: str) -> None:
        self._store = store
        self._publisher = publisher

    def inspect(self, ids: Sequence[int]) -> Inspection:
        """Inspect the database and the messages with these ids."""
        return Inspection.read(self._store.fetch(INSPECT, [self._publisher, array(ids)])[0])

    def inspect_again(self, ids: Sequence[int]) -> Inspection:
        """Inspect further messages in the transaction of `claim`."""
        return Inspection.read(self._store.fetch("EXECUTE outbox_inspect(%s, %s)", [self._publisher, array(ids)])[0])

    def claim(
        self, stack: ExitStack, position: StoredPosition, ids: Sequence[int], *, max_seconds: float
    ) -> tuple[Backend, Inspection] | None:
        """Begin the transaction of a claim, lock the position and inspect messages, with one round trip.

        The transaction ends with the stack. Return None if another relay has the position or has moved it, or if the
        session cannot keep the statements.
        """
        calls = (
            ("outbox_lock_position", [self._publisher, position.address]),
            ("outbox_inspect", [self._publisher, array(ids)]),
        )
        with ExitStack() as opened:
            begun = self._store.begin_prepared(opened, CLAIM, max_seconds, *calls)
            if begun is None:
                return None
            backend, [locked, [inspected]] = begun
            if [StoredPosition(*row) for row in locked] != [position]:
                return None
            stack.push(opened.pop_all())
            return backend, Inspection.read(inspected)

    def has_reader(self, slot: str) -> bool:
        """Return whether a relay reads the log through this slot, or is about to."""
        ((is_read, _),) = self._store.fetch(READER, [slot])
        return bool(is_read)

    def find_table(self) -> tuple[int, str]:
        """Return the OID of the table of messages, and the name of the slot of this publisher's log.

        The whole server has one name space for slots.
        """
        ((oid, database),) = self._store.fetch(FIND_TABLE)
        number = zlib.crc32(f"{database} {oid} {self._publisher}".encode())
        return oid, f"outbox_{re.sub('[^a-z0-9_]', '_', self._publisher.lower())[:40]}_{number:08x}"

    def measure_reader(self) -> tuple[bool | None, int | None]:
        """Return whether a relay reads the log, and how many bytes of it the server keeps for it; None if unknown."""
        _, slot = self.find_table()
        ((is_read, kept),) = self._store.fetch(READER, [slot])
        return is_read, kept
