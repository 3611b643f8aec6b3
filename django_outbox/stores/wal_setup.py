"""The requirements of a database for relays that read its log."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import NamedTuple

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
        yield Obstacle("has a wal_level that does not support logical decoding", f"{DECODE_LOG}.", "W054")
    if not may_read:
        yield Obstacle(f"does not let the role {role} read the log", ADMIT_ROLE.format(role=role), "W055")


def list_statements(store: PostgreSQLStore) -> list[str]:
    """Return the SQL that sets the publication up; none if nothing is to be done.

    A publication that has less than relays need is replaced. Those that read the log notice that.
    """
    publication = find_publication(store)
    if not publication.missing:
        return []
    ((table,),) = store.fetch(FIND_NAME)
    columns = ", ".join(COLUMNS)
    removal = [f"DROP PUBLICATION {PUBLICATION}"] if publication.identity else []
    return [
        *removal,
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {table} ({columns}) WITH (publish = 'insert')",
    ]
