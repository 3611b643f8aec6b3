"""Classify database errors, mostly by the codes of PostgreSQL, MySQL and MariaDB."""

from django.db import DatabaseError, IntegrityError, InterfaceError, OperationalError, ProgrammingError

MISSING_TABLE = ("42P01", 1146)

MISSING_RIGHT = ("42501", 1142, 1143)
"""A right on a table, or on some of its columns."""

BROKEN_SCHEMA = (*MISSING_TABLE, *MISSING_RIGHT, "42703", 1054, 1227, 1356, 1370, 1449)
"""The other codes are for a missing column, and MySQL's and MariaDB's for a broken view and for a trigger without its
user or right."""

SIGNALLED = 1644
"""MySQL's and MariaDB's code for an error that a trigger raises, in an OperationalError."""

CONFLICTS = ("40001", "40P01", "55P03", 1020, 1205, 1213, 3572)
"""PostgreSQL's codes of serialization_failure, deadlock_detected and lock_not_available, and those of MySQL and MariaDB
for a row that is newer than the snapshot (MariaDB 11.6.2 and newer), a wait for a lock that took too long, a deadlock,
and a lock that NOWAIT did not get."""

BUSY = ("database is locked", "database table is locked", "database schema is locked")
"""The beginnings of SQLite's errors because of a lock of another connection. Python has the codes SQLITE_BUSY and
SQLITE_LOCKED since 3.11 only."""

ROW_CHECKS = ("ExecWithCheckOptions", "exec_stmt_raise")
"""The functions of PostgreSQL that refuse a row because of a policy, with the code for a missing right, or because a
trigger raises an error, with any code."""


def shows_missing_table(error: BaseException) -> bool:
    # SQLite has no code for it.
    return _code(error) in MISSING_TABLE or "no such table" in str(error)


def shows_missing_right(error: BaseException) -> bool:
    """Return whether an error reports that the role lacks a right, on a table that may exist."""
    return _code(error) in MISSING_RIGHT


def shows_refusal(error: BaseException) -> bool:
    """Return whether the database refuses a statement until a right, the schema or a row is changed."""
    return isinstance(error, ProgrammingError | IntegrityError) or _code(error) in (*BROKEN_SCHEMA, SIGNALLED)


def shows_refused_row(error: BaseException) -> bool:
    """Return whether the database refuses to change one row: because of a trigger, a constraint or a policy."""
    if _is_about_row(error):
        return True
    return isinstance(error, DatabaseError) and not may_pass(error) and _code(error) not in BROKEN_SCHEMA


def may_pass(error: BaseException) -> bool:
    """Return whether the same statement may succeed later: the database is unavailable, or a limit was met."""
    return isinstance(error, OperationalError | InterfaceError) and not (shows_refusal(error) or _is_about_row(error))


def shows_conflict(error: BaseException) -> bool:
    """Return whether an error, or one behind it, is a deadlock, a serialization failure, or a lock in use."""
    seen: BaseException | None = error
    while seen is not None:
        is_busy = isinstance(seen, DatabaseError) and (_code(seen) in CONFLICTS or str(seen).startswith(BUSY))
        if is_busy or _sqlstate(seen) in CONFLICTS:
            return True
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    return False


def _is_about_row(error: BaseException) -> bool:
    return getattr(getattr(error.__cause__, "diag", None), "source_function", "") in ROW_CHECKS


def _code(error: BaseException) -> object:
    return _sqlstate(error.__cause__) or (error.args[0] if error.args else None)


def _sqlstate(error: BaseException | None) -> object:
    # psycopg 3 and psycopg2.
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
