"""The database's clock, which alone decides which messages are due and when something happened."""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler


class DatabaseNow(Now):
    """The start of the statement on the database's clock, in UTC.

    Django's `Now` returns a time in the session's time zone on MySQL and MariaDB, although Django stores UTC. On
    SQLite, which compares times as text, this one has six digits of a second like all times that Django stores.
    """

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra_context)

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any
    ) -> tuple[str, Any]:
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')"
        return self.as_sql(compiler, connection, template=template, **extra_context)
