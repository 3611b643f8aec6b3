"""Comparisons of text that give the same result on every database: by a pattern such as `order.*`, or exact."""

import re
from typing import TYPE_CHECKING, Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Lookup
from django.db.models.sql.compiler import SQLCompiler

if TYPE_CHECKING:
    BaseLookup = Lookup[str]
else:
    BaseLookup = Lookup


class MatchesPattern(BaseLookup):
    """Whether a text matches a pattern in which `*` stands for any characters; upper and lower case differ.

    Pass it to `filter` as a condition: `MatchesPattern(F("type"), "order.*")`. Django's own lookups ignore case on some
    databases.
    """

    lookup_name = "outbox_matches_pattern"
    prepare_rhs = False

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return self._like(compiler, connection, "LIKE")

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        return self._like(compiler, connection, "LIKE BINARY")

    def as_sqlite(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"{text} GLOB %s", (*params, re.sub(r"([?\[])", r"[\1]", self.rhs))

    def _like(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, like: str) -> tuple[str, tuple[Any, ...]]:
        text, params = self.process_lhs(compiler, connection)
        return f"{text} {like} %s ESCAPE '!'", (*params, re.sub(r"([!%_])", r"!\1", self.rhs).replace("*", "%"))


class IsExactly(BaseLookup):
    """Whether two texts are identical; Django's `exact` ignores case and trailing blanks on MySQL and MariaDB.

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
