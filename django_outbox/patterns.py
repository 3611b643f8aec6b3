"""Patterns such as `order.*` as a condition that every database reads alike."""

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
    """Whether a text is as a pattern says, in which `*` stands for any characters; upper and lower case differ.

    Give it to `filter` as a condition: `MatchesPattern(F("type"), "order.*")`. Django's own lookups ignore the case on
    some databases.
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
