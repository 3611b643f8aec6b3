"""Functions and lookups of the ORM: the database's clock, which decides what is due, and comparisons of text."""

import re
from functools import partialmethod
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import BigIntegerField, CharField, Func, JSONField, Lookup, TextField, Value
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler


class DatabaseNow(Now):
    """The start of the statement on the database's clock, in UTC.

    Django's `Now` returns a time in the session's time zone on MySQL and MariaDB, although Django stores UTC. On
    SQLite, which compares times as text, this one has six digits of a second like all times that Django stores.
    """

    as_mysql = partialmethod(Func.as_sql, template="UTC_TIMESTAMP(6)")
    as_sqlite = partialmethod(Func.as_sql, template="STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')")


JSON_SET = """JSON_SET(%(expressions)s, '$."%(name)s"', {time})"""

TIME_OF_MYSQL = "DATE_FORMAT(UTC_TIMESTAMP(6), '%%%%Y-%%%%m-%%%%dT%%%%H:%%%%i:%%%%s.%%%%fZ')"

TIME_OF_SQLITE = "STRFTIME('%%%%Y-%%%%m-%%%%dT%%%%H:%%%%M:%%%%fZ', 'NOW')"

TIME_OF_POSTGRESQL = """to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


class WithCurrentTime(Func):
    """A JSON object with a name added to it, which has the start of the statement as its value: ISO 8601, in UTC."""

    output_field = JSONField()

    def __init__(self, object: Any, name: str) -> None:
        super().__init__(object)
        self.extra["name"] = name

    as_mysql = partialmethod(Func.as_sql, template=JSON_SET.format(time=TIME_OF_MYSQL))
    as_sqlite = partialmethod(Func.as_sql, template=JSON_SET.format(time=TIME_OF_SQLITE))
    as_postgresql = partialmethod(
        Func.as_sql, template=f"%(expressions)s || jsonb_build_object('%(name)s', {TIME_OF_POSTGRESQL})"
    )


class CurrentTransaction(Func):
    """The number of the current transaction on PostgreSQL; NULL on other databases."""

    template = "NULL"
    output_field = BigIntegerField()
    allowed_default = True
    as_postgresql = partialmethod(Func.as_sql, template="pg_current_xact_id()")


SERVER = "(SELECT system_identifier::text FROM pg_control_system())"
"""SQL of the identifier of a PostgreSQL server, which numbers the transactions."""


WRITER = """(
    pg_snapshot_xmax(pg_current_snapshot())::text::bigint
    - (pg_snapshot_xmax(pg_current_snapshot())::text::bigint - {row}xmin::text::bigint & 4294967295)
)::text::xid8"""
"""SQL of the whole number of the transaction that wrote a visible row of PostgreSQL into its table on this server."""


class Writer(Func):
    """On PostgreSQL, the number of the transaction that wrote the row of the given column; NULL on other databases.

    It differs from the number in the row if the row was copied by a dump or by logical replication.
    """

    template = "NULL"
    output_field = BigIntegerField()

    def as_postgresql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any
    ) -> tuple[str, Any]:
        column, _ = compiler.compile(self.source_expressions[0])
        return WRITER.format(row=column.rpartition(".")[0] + "."), ()


class CurrentServer(Func):
    """The identifier of the server on PostgreSQL; empty on other databases."""

    template = "''"
    output_field = CharField()
    as_postgresql = partialmethod(Func.as_sql, template=SERVER)


class MatchesPattern(Lookup):
    """Whether a text matches a pattern in which `*` stands for any characters; upper and lower case differ.

    Pass it to `filter` as a condition: `MatchesPattern(F("type"), "order.*")`. Django's own lookups ignore case on some
    databases.
    """

    lookup_name = "outbox_matches_pattern"
    prepare_rhs = False

    def as_sql(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, like: str = "LIKE"
    ) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"{text} {like} %s ESCAPE '!'", (*params, re.sub(r"([!%_])", r"!\1", self.rhs).replace("*", "%"))

    as_mysql = partialmethod(as_sql, like="LIKE BINARY")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"{text} GLOB %s", (*params, re.sub(r"([?\[])", r"[\1]", self.rhs))


class IsExactly(Lookup):
    """Whether two texts are identical; Django's `exact` ignores case and trailing spaces on MySQL and MariaDB.

    Pass it to `filter` as a condition: `IsExactly(F("key"), "order-7")`.
    """

    lookup_name = "outbox_is_exactly"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"{text} = %s", (*params, self.rhs)

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"CAST({text} AS BINARY) = CAST(%s AS BINARY)", (*params, self.rhs)


def json_text(text: str) -> Value:
    """Return JSON that is written to a column as it is, because decoding would change numbers with many digits."""
    return Value(text, TextField())
