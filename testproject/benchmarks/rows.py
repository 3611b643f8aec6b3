"""Millions of rows of the outbox's table, made by the database itself."""

import sys
import uuid

from django.db import connection

from benchmarks.tables import TABLE
from django_outbox.fields import partition_of

CHUNK = 500_000

KEYS = 1000

COLUMNS = (
    "message_id, type, topic, {key}, {partition}, payload, headers, publisher, occurred_at, available_at, attempts, "
    "processed_at, error, error_class"
)

PAYLOAD = '{"id": 1, "total": 1, "text": "' + "x" * 190 + '"}'

NUMBERS = {
    "postgresql": "generate_series(1, {count}) AS numbers(number)",
    "mysql": "(SELECT seq AS number FROM seq_1_to_{count}) numbers",
}
# They ascend within a chunk, as those of enqueue() do.
UUIDS = {
    "postgresql": "('{start}' || lpad(to_hex(number), 12, '0'))::uuid",
    "mysql": "CONCAT('{start}', LPAD(HEX(number), 12, '0'))",
}
TIMES = {
    "postgresql": "statement_timestamp() + ({offset}) * interval '1 second'",
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL ({offset}) SECOND",
}


def insert_processed(count: int) -> None:
    """Insert rows that were processed within the last day."""
    _insert(count, available=None, processed="-1.0 - number % 86400")


def insert_pending(count: int) -> None:
    """Insert rows that have been due for up to an hour, without a key."""
    _insert(count, available="-3600 + number / 1000.0", processed=None, topic="orders.0")


def insert_backoff(count: int) -> None:
    """Insert rows that wait an hour for their second attempt, half of them with one of a thousand keys."""
    _insert(count - count // 2, available="3600 + number % 600", processed=None, attempts=1)
    _insert(count // 2, available="3600 + number % 600", processed=None, attempts=1, keyed=True)


def _insert(
    count: int,
    *,
    available: str | None,
    processed: str | None,
    topic: str = "",
    attempts: int = 0,
    keyed: bool = False,
) -> None:
    vendor, quote = connection.vendor, connection.ops.quote_name

    def at(offset: str | None) -> str:
        return "NULL" if offset is None else TIMES[vendor].format(offset=offset)

    key, partition, source = "''", "0", NUMBERS[vendor]
    if keyed:
        partitions = ", ".join(f"({n}, 'old-{n}', {partition_of(f'old-{n}')})" for n in range(KEYS))
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE old_keys (place int PRIMARY KEY, name varchar(255), part int)")
            cursor.execute(f"INSERT INTO old_keys VALUES {partitions}")  # noqa: S608
        key, partition, source = "name", "part", f"{source} JOIN old_keys ON place = number % {KEYS}"
    columns = COLUMNS.format(key=quote("key"), partition=quote("partition"))
    for start in range(0, count, CHUNK):
        size = min(CHUNK, count - start)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[2K  inserting {start:,}/{count:,}")
        message_id = UUIDS[vendor].format(start=str(uuid.uuid4())[:24])
        with connection.cursor() as cursor:
            cursor.execute(
                f"INSERT INTO {TABLE} ({columns}) SELECT {message_id}, 'order.created', '{topic}', {key}, "  # noqa: S608
                f"{partition}, '{PAYLOAD}', '{{}}', 'default', {at('-7200')}, {at(available)}, {attempts}, "
                f"{at(processed)}, '', '' FROM {source.format(count=size)} ORDER BY number"
            )
    if keyed:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE old_keys")
