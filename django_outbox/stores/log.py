"""A stream that is fed by PostgreSQL's log, and what the server must have for that."""

import re
import zlib
from collections.abc import Iterator, Sequence, Set
from importlib.util import find_spec
from typing import NamedTuple

from django_outbox.db.snapshots import Snapshot
from django_outbox.models import OutboxMessage
from django_outbox.stores.postgresql import array
from django_outbox.stores.stream import STREAMED_BY_ID, WAITS, Stream

PUBLICATION = "django_outbox"
"""The name of the publication, which users create."""

COLUMNS = ("xid", "publisher", "id", "message_id", "type", "topic", "key", "payload", "headers", "occurred_at")
"""The columns of `OutboxMessage` that the publication must have."""

CREATE_PUBLICATION = (
    f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {OutboxMessage._meta.db_table} ({', '.join(COLUMNS)}) "
    "WITH (publish = 'insert')"
)

# Changes if the publication or its entry for the table does, or if the table is made anew.
PUBLISHED = f"""
SELECT concat_ws(' ', publication.oid, publication.xmin, entry.oid, entry.xmin)
FROM pg_publication publication
LEFT JOIN pg_publication_rel entry ON entry.prpubid = publication.oid AND entry.prrelid = '{{table}}'::regclass
WHERE pubname = '{PUBLICATION}'
"""

# The place in the log is read after the snapshot was taken. The position is locked, so if this transaction has written
# a message, its number is not new.
INSPECT = f"""
SELECT pg_current_snapshot()::text, pg_current_xact_id_if_assigned()::text,
    (pg_current_wal_insert_lsn() - '0/0')::bigint,
    ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer,
    ({PUBLISHED}), coalesce(array_agg(id), '{{}}'), coalesce(array_agg(id) FILTER (WHERE waits), '{{}}')
FROM (
    SELECT id, {WAITS} AS waits FROM {{table}} message WHERE id = ANY(%s::bigint[]) AND {STREAMED_BY_ID}
) streamed
"""

HAS_READER = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s)"

FIND_TABLE = "SELECT '{table}'::regclass::oid::bigint, current_database()"

FIND_COLUMNS = """
SELECT coalesce(array_agg(attname::text), '{}')
FROM pg_publication
JOIN pg_publication_tables published USING (pubname)
JOIN pg_namespace ON nspname = schemaname
JOIN pg_class ON relnamespace = pg_namespace.oid AND relname = tablename
CROSS JOIN LATERAL unnest(attnames) attname
WHERE pubname = %s AND pubinsert AND pg_class.oid = '{table}'::regclass
    AND to_jsonb(published) ->> 'rowfilter' IS NULL
"""

# On Amazon RDS, membership in a role gives the privilege. Slots of relays are free for them.
CAPABILITIES = """
SELECT quote_ident(current_user), current_setting('wal_level') = 'logical',
    EXISTS (
        SELECT FROM pg_roles WHERE rolname = current_user AND (rolsuper OR rolreplication)
        OR rolname = 'rds_replication' AND pg_has_role(oid, 'member')
    ),
    current_setting('max_replication_slots')::integer - others, current_setting('max_wal_senders')::integer - active
FROM (
    SELECT count(*) AS others, count(active_pid) AS active FROM pg_replication_slots WHERE slot_name !~ '^outbox_'
) slots
"""


class Obstacle(NamedTuple):
    """Something that prevents that the log is read.

    Attributes:
        check: the number of the system check.
        problem: the end of a sentence that begins with the name of the database.
        remedy: a sentence.
    """

    check: str
    problem: str
    remedy: str


class Inspection(NamedTuple):
    """The state of the database and of messages that the log has brought.

    Attributes:
        visible: the transactions that are visible.
        lsn: a place in the log behind the commit of everything that is visible.
        timeline: the timeline of the server, which a promoted standby changes.
        published: what identifies the publication as it is now; blank if there is none.
        streamed: the messages that are visible and still streamed.
        waiting: those of them that wait for an earlier one of their key that is in the table.
    """

    visible: Snapshot
    lsn: int
    timeline: int
    published: str
    streamed: Set[int]
    waiting: Set[int]


class LogStream(Stream):
    """A stream with the statements that are needed to follow the log."""

    def inspect(self, ids: Sequence[int]) -> Inspection:
        """Inspect the database and the messages with these ids."""
        ((text, own, *facts, streamed, waiting),) = self._fetch(INSPECT, [self._publisher, array(ids)])
        lsn, timeline, published = facts
        visible = Snapshot.read(text, own)
        return Inspection(visible, lsn, timeline, published or "", frozenset(streamed), frozenset(waiting))

    def has_reader(self, slot: str) -> bool:
        """Return whether a relay reads the log through this slot, or is about to."""
        return bool(self._fetch(HAS_READER, [slot])[0][0])

    def find_table(self) -> tuple[int, str]:
        """Return the OID of the table of messages, and the name of the slot of this publisher's log.

        The whole server has one name space for slots.
        """
        ((oid, database),) = self._fetch(FIND_TABLE)
        number = zlib.crc32(f"{database} {oid} {self._publisher}".encode())
        return oid, f"outbox_{re.sub('[^a-z0-9_]', '_', self._publisher.lower())[:40]}_{number:08x}"

    def find_publication(self) -> str:
        """Return what identifies the publication as it is now; blank if there is none."""
        rows = self._fetch(PUBLISHED)
        return str(rows[0][0]) if rows else ""

    def find_missing_columns(self) -> Set[str]:
        """Return the columns that the publication lacks: all if there is none."""
        return {*COLUMNS} - {*self._fetch(FIND_COLUMNS, [PUBLICATION])[0][0]}

    def find_obstacles(self, readers: int) -> Iterator[Obstacle]:
        """Find out what prevents that this number of publishers is fed from the log."""
        if find_spec("psycopg") is None:
            yield Obstacle("W053", "is used without psycopg 3", "Install psycopg.")
        ((role, logical, may_read, slots, senders),) = self._fetch(CAPABILITIES)
        if not logical:
            yield Obstacle(
                "W054",
                "has a wal_level that does not support logical decoding",
                "Set wal_level = logical in postgresql.conf, and restart the server.",
            )
        if not may_read:
            remedy = f"Run: ALTER ROLE {role} REPLICATION; on Amazon RDS: GRANT rds_replication TO {role}"
            yield Obstacle("W055", "does not let this role read the log", remedy)
        if missing := self.find_missing_columns():
            problem, drop = f"has no publication {PUBLICATION}", ""
            if self.find_publication():
                problem = f"has a publication {PUBLICATION} with a row filter, or without {', '.join(sorted(missing))}"
                drop = f"DROP PUBLICATION {PUBLICATION}; "
            yield Obstacle("W056", problem, f"Run: {drop}{CREATE_PUBLICATION}")
        if min(slots, senders) < readers:
            yield Obstacle(
                "W057",
                f"has {slots} free replication slots and {senders} free WAL senders, but {readers} are needed",
                "Raise max_replication_slots and max_wal_senders in postgresql.conf, and restart the server.",
            )
