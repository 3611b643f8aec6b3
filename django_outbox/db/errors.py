"""Classify database errors by the codes of PostgreSQL, MySQL and MariaDB."""

from django.db import ProgrammingError

MISSING_TABLE = ("42P01", 1146)

MISSING_RIGHT = ("42501", 1142, 1143)
"""A right on a table, or on some of its columns."""

REFUSED = (*MISSING_RIGHT, 1054, 1227, 1356, 1370, 1449)
"""The other codes are MySQL's and MariaDB's for a missing column, a broken view, and a trigger without its user or
right. Their drivers do not raise a ProgrammingError for them."""


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
