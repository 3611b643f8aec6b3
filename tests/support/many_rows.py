"""Many rows of the outbox's table, which the database makes itself."""

from django.db import connections

from django_outbox.models import OutboxMessage

TABLE = OutboxMessage._meta.db_table

WITH = {"sqlite": "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})"}
NUMBERS = {
    "sqlite": "numbers",
    "postgresql": "generate_series(1, {count}) AS numbers(n)",
    # MySQL has no sequences, and its recursion ends after 1,000 rows.
    "mysql": "JSON_TABLE(CONCAT('[', REPEAT('0,', {count} - 1), '0]'), '$[*]' COLUMNS (n FOR ORDINALITY)) numbers",
}
UUID = {"sqlite": "lower(hex(randomblob(16)))", "postgresql": "gen_random_uuid()", "mysql": "REPLACE(uuid(), '-', '')"}
TIME = {
    "sqlite": "strftime('%Y-%m-%d %H:%M:%f', 'now', ({seconds}) || ' seconds')",
    "postgresql": "statement_timestamp() + ({seconds}) * interval '1 second'",
    "mysql": "UTC_TIMESTAMP(6) + INTERVAL ({seconds}) SECOND",
}


def from_now(using: str, seconds: float | str) -> str:
    """Return the SQL of a time; blank seconds are none."""
    return TIME[connections[using].vendor].format(seconds=seconds) if seconds != "" else "NULL"


def insert_rows(using: str, count: int, **columns: str) -> None:
    """Insert messages by one statement; the columns are SQL, in which `n` counts the rows."""
    connection = connections[using]
    given = {
        **dict.fromkeys(("topic", "key", "error", "error_class"), "''"),
        **dict.fromkeys(("payload", "headers"), "'{}'"),
        **dict.fromkeys(("available_at", "processed_at", "failed_at"), "NULL"),
        "message_id": UUID[connection.vendor],
        "type": "'order.created'",
        "publisher": "'default'",
        "partition": "0",
        "blocks_key": "false",
        "attempts": "0",
        "occurred_at": from_now(using, 0),
        **columns,
    }
    names, values = ", ".join(map(connection.ops.quote_name, given)), ", ".join(given.values())
    prefix, numbers = (words.get(connection.vendor, "").format(count=count) for words in (WITH, NUMBERS))
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {TABLE} ({names}) {prefix} SELECT {values} FROM {numbers}")
