"""A table of SQL that Django does not know, with foreign keys to messages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django.db import connections

from django_outbox.models import OutboxMessage


@contextmanager
def linked_by_sql(using: str, ids: Sequence[int]) -> Iterator[None]:
    """A table with rows that refer to these messages."""
    connection = connections[using]
    table, key = (
        connection.ops.quote_name(OutboxMessage._meta.db_table),
        connection.data_types["BigAutoField"].split()[0],
    )
    create = (
        f"CREATE TABLE outbox_link (message_id {key}, FOREIGN KEY (message_id) REFERENCES {table} (id))"
        if connection.vendor == "mysql"
        else f"CREATE TABLE outbox_link (message_id {key} REFERENCES {table} (id) DEFERRABLE INITIALLY DEFERRED)"
    )
    with connection.cursor() as cursor:
        for statement in (create, *(f"INSERT INTO outbox_link VALUES ({id})" for id in ids)):
            cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE outbox_link")
