"""The requirements of a database for relays that read its log."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from django.db import transaction

from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.wal import (
    ADMIT_ROLE,
    COLUMNS,
    DECODE_LOG,
    PUBLICATION,
    SET_UP,
    find_publication,
)

# A relay connects as the role of the session, even if Django assumes another one for its queries. On Amazon RDS,
# membership in a role gives the privilege.
CAPABILITIES = """
SELECT quote_ident(rolname), rolname = session_user,
    -- Since version 19, a server with "replica" decodes its log while there is a logical slot.
    current_setting('wal_level') = 'logical'
        OR current_setting('wal_level') = 'replica' AND current_setting('server_version_num')::integer >= 190000,
    rolsuper OR rolreplication OR EXISTS (
        SELECT FROM pg_roles rds WHERE rds.rolname = 'rds_replication' AND pg_has_role(role.oid, rds.oid, 'member')
    )
FROM pg_roles role
WHERE rolname = coalesce(%s, session_user)
"""

FIND_NAME = """
SELECT format('%%I.%%I', nspname, relname)
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = '{table}'::regclass
"""


class Obstacle(NamedTuple):
    """Something that prevents that the log is read, or that the publication is set up.

    Attributes:
        problem: the end of a sentence that begins with the name of the database.
        remedy: a sentence.
        check: the number of the system check; blank if there is none.
    """

    problem: str
    remedy: str
    check: str = ""


class LogSetup:
    """The publication of a database, and what else relays need to read the log.

    Args:
        role: the role of the relays; by default, that of the session.
    """

    def __init__(self, store: PostgreSQLStore, role: str | None = None) -> None:
        self._store = store
        self._role = role

    def find_unfit(self) -> Obstacle | None:
        """Return why nothing can be set up on this server."""
        ((is_standby,),) = self._store.fetch("SELECT pg_is_in_recovery()")
        if is_standby:
            return Obstacle("is a standby", "Use the primary server.", "W058")
        return None

    def find_obstacles(self) -> Iterator[Obstacle]:
        """Find what prevents relays from reading the log."""
        if unfit := self.find_unfit():
            yield unfit
            return
        has_driver = find_spec("psycopg") is not None
        if not has_driver:
            yield Obstacle("is used without psycopg 3", "Install psycopg.", "W053")
        yield from self._find_faults()
        capabilities = self._store.fetch(CAPABILITIES, [self._role])
        if not capabilities:
            yield Obstacle(f"has no role {self._role!r}", "Create it, or name the role of the relays.", "W055")
            return
        ((role, is_own, is_logical, may_read),) = capabilities
        if not is_logical:
            yield Obstacle("has a wal_level that does not support logical decoding", f"{DECODE_LOG}.", "W054")
        if not may_read:
            yield Obstacle(f"does not let the role {role} read the log", ADMIT_ROLE.format(role=role), "W055")
        if is_own and may_read and has_driver:
            yield from self._find_refusal()

    def _find_faults(self) -> Iterator[Obstacle]:
        publication = find_publication(self._store)
        if not publication.missing:
            return
        problem = f"has no publication {PUBLICATION}"
        if publication.identity:
            missing = ", ".join(sorted(publication.missing))
            problem = f"has a publication {PUBLICATION} that lacks inserted rows of the table, or the columns {missing}"
        yield Obstacle(problem, f"{SET_UP.format(alias=self._store.connection.alias)}.", "W056")

    def _find_refusal(self) -> Iterator[Obstacle]:
        # Only here, because a project may have another driver.
        from django_outbox.stores.replication import find_refusal  # noqa: PLC0415

        if refusal := find_refusal(self._store.connection.get_connection_params()):
            remedy = "Connect to the server itself, or to a pool that passes replication, as PgBouncer does since 1.23."
            yield Obstacle(f"refuses a connection that reads the log: {refusal.rstrip('.')}", remedy, "W059")

    def list_statements(self) -> list[str]:
        """Return the SQL that sets the publication up; none if nothing is to be done.

        A publication that has less than relays need is replaced. Those that read the log notice that.
        """
        publication = find_publication(self._store)
        if not publication.missing:
            return []
        ((table,),) = self._store.fetch(FIND_NAME)
        columns = ", ".join(COLUMNS)
        removal = [f"DROP PUBLICATION {PUBLICATION}"] if publication.identity else []
        return [
            *removal,
            f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {table} ({columns}) WITH (publish = 'insert')",
        ]

    def run(self, statements: Sequence[str]) -> None:
        """Run statements in one transaction."""
        with transaction.atomic(using=self._store.connection.alias), self._store.connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
