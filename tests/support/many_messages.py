"""A table of many messages in all states, for tests of query plans."""

from django.db import connections

from django_outbox.models import OutboxMessage
from tests.stores.test_plans import SOURCE, TIDY, UUID, run

TABLE = OutboxMessage._meta.db_table
ROWS = 200_000
# Of every hundred rows 2 have failed, 20 are pending, 5 of them for another publisher, and the others are processed.
# A third have a key, which those that have failed let pass.
FILL = """
INSERT INTO {table} (message_id, type, topic, {key}, {partition}, blocks_key, payload, headers, publisher, attempts,
    error, error_class, occurred_at, failed_at, available_at, processed_at)
SELECT {uuid}, CASE WHEN n % 7 = 0 THEN 'order.paid' ELSE 'order.created' END, '',
    CASE WHEN n % 3 = 0 THEN CONCAT('order-', n % 4999) ELSE '' END,
    CASE WHEN n % 3 > 0 THEN 0 ELSE 1 + n % 4999 END, n % 3 = 0 AND n % 100 BETWEEN 2 AND 21, '{{}}', '{{}}',
    CASE WHEN n % 100 < 7 THEN 'other' ELSE 'default' END, 0, '', '', time,
    CASE WHEN n % 100 < 2 THEN time END,
    CASE WHEN n % 100 BETWEEN 2 AND 21 THEN time END,
    CASE WHEN n % 100 > 21 THEN time END
FROM (SELECT n, {time} AS time FROM {numbers}) numbered
"""
# The words of each vendor.
WORDS = {
    "postgresql": {
        "key": '"key"',
        "partition": "partition",
        "uuid": UUID["postgresql"],
        "time": "statement_timestamp() - n * interval '1 second'",
        "numbers": SOURCE["postgresql"].format(count=ROWS),
    },
    "mysql": {
        "key": "`key`",
        "partition": "`partition`",
        "uuid": UUID["mysql"],
        "time": "UTC_TIMESTAMP(6) - INTERVAL n SECOND",
        "numbers": SOURCE["mysql"].format(count=ROWS),
    },
}
POSTGRESQL_SCANS = {"CTE Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Bitmap Index Scan"}


def fill_table(using: str) -> None:
    """Write the messages, and let the database gather its statistics."""
    vendor = connections[using].vendor
    run(using, FILL.format(table=TABLE, **WORDS[vendor]).replace("%", "%%"))
    run(using, TIDY[vendor].format(TABLE))
