"""What the errors of a database report, by the codes of PostgreSQL, MySQL and MariaDB."""

from django.db import ProgrammingError

MISSING_TABLE = ("42P01", 1146)

MISSING_RIGHT = ("42501", 1142, 1143)
"""A right on a table, or on some of its columns."""

REFUSED = (*MISSING_RIGHT, 1054, 1227, 1356, 1370, 1449)
"""The others are those of MySQL and MariaDB for a column, a table behind a view, and a right or a user behind a
trigger. Its driver does not report them as a ProgrammingError."""


def shows_missing_table(error: BaseException) -> bool:
    """Return whether an error reports that a table is missing."""
    # SQLite has no code for it.
    return _code(error) in MISSING_TABLE or "no such table" in str(error)


def shows_missing_right(error: BaseException) -> bool:
    """Return whether an error reports that the role lacks a right, on a table that may exist."""
    return _code(error) in MISSING_RIGHT


def shows_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a statement until a right or the schema is changed."""
    return isinstance(error, ProgrammingError) or _code(error) in REFUSED


def _code(error: BaseException) -> object:
    cause = error.__cause__
    # psycopg 3 and psycopg2.
    code = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return code or (error.args[0] if error.args else None)
