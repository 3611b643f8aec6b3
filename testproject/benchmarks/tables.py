"""The outbox's table as a benchmark finds it: the same rows for each case, and nothing left of the case before."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from django.db import DatabaseError, connection

from django_outbox.models import OutboxMessage

TABLE = OutboxMessage._meta.db_table


def empty(*, above: int = 0) -> None:
    """Delete everything, dead rows and index entries too; or what lies above an id."""
    if above or connection.vendor == "sqlite":
        _run(f"DELETE FROM {TABLE} WHERE id > {above}")  # noqa: S608
    else:
        _run(f"TRUNCATE TABLE {TABLE}")


def save(name: str, *, above: int = 0) -> None:
    """Keep the rows of the table under a name; all of them, or those above an id."""
    _run(f"CREATE TABLE saved_{name} AS SELECT * FROM {TABLE} WHERE id > {above}")  # noqa: S608


def restore(name: str, *, above: int = 0) -> None:
    """Make the table anew out of the rows that were saved under a name; what lies up to an id stays as it is."""
    empty(above=above)
    _run(f"INSERT INTO {TABLE} SELECT * FROM saved_{name} ORDER BY id")  # noqa: S608
    refresh()


def refresh() -> None:
    """Have the server do now what it would do in the middle of a measurement: gather statistics, and write to the disk.

    The broker's queues are on the same disk, and wait for it with every confirm.
    """
    statements = {"postgresql": f"VACUUM (ANALYZE) {TABLE}", "mysql": f"ANALYZE TABLE {TABLE}"}
    _run(statements.get(connection.vendor, "ANALYZE"))
    if connection.vendor == "postgresql":
        # Not everybody may.
        with suppress(DatabaseError):
            _run("CHECKPOINT")


@contextmanager
def without_indexes() -> Iterator[None]:
    """Take the outbox's own indexes away until the end; primary key and unique columns stay."""
    indexes = OutboxMessage._meta.indexes
    with connection.schema_editor() as editor:
        for index in indexes:
            editor.remove_index(OutboxMessage, index)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            for index in indexes:
                editor.add_index(OutboxMessage, index)


def _run(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)
