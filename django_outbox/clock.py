"""The database's clock: what is due, and when something happened, is decided by it alone."""

from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.functions import Now
from django.db.models.sql.compiler import SQLCompiler


class DatabaseNow(Now):
    """The start of the statement on the database's clock, in UTC.

    Differs from Django's `Now` on MySQL and MariaDB, where that one answers in the session's time zone while Django
    stores UTC; and on SQLite, which compares times as text: there it has six digits of a second, as all that Django
    stores.
    """

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra_context)

    def as_sqlite(
        self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any
    ) -> tuple[str, Any]:
        template = "STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f000', 'NOW')"
        return self.as_sql(compiler, connection, template=template, **extra_context)
