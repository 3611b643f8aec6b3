"""PostgreSQL: a claim is a transaction with row locks."""

from django_outbox.databases.base import Claim, LockingDatabase, read_headers
from django_outbox.messages import Message

# Ordered by the index, so that a row that is not yet due is never scanned. The sum of sizes is taken over rows that are
# locked already, because a window function and FOR UPDATE may not stand in one SELECT.
CLAIM = """
SELECT id, message_id, type, topic, key, payload, headers, occurred_at, attempts, before
FROM (
    SELECT due.*, sum(octet_length(payload) + octet_length(headers)) OVER (
        ORDER BY available_at, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ) AS before
    FROM (
        SELECT id, message_id, type, topic, key, payload::text AS payload, headers::text AS headers, occurred_at,
            attempts, available_at
        FROM {table}
        WHERE publisher = %s AND available_at <= statement_timestamp()
        ORDER BY available_at, id
        LIMIT %s
        FOR UPDATE SKIP LOCKED
    ) due
) batch
WHERE before IS NULL OR before < %s
ORDER BY available_at, id
"""

PURGE = """
DELETE FROM {table} WHERE id = ANY(ARRAY(
    SELECT id FROM {table} WHERE processed_at < statement_timestamp() - %s * interval '1 second'
    ORDER BY processed_at, id LIMIT %s FOR UPDATE SKIP LOCKED
))
"""

MAX_TIMEOUT = 2**31 - 1
"""The longest timeout that PostgreSQL takes, in milliseconds."""


class PostgreSQL(LockingDatabase):
    """Claims with FOR UPDATE SKIP LOCKED over the partial index `outbox_pending`."""

    DELETED = "DELETE FROM {table} WHERE id = ANY(%s)"
    PROCESSED = """
        UPDATE {table}
        SET processed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1, error = ''
        WHERE id = ANY(%s)
    """
    FAILED = """
        UPDATE {table} message
        SET failed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1, error = settled.error
        FROM jsonb_to_recordset(%s::jsonb) AS settled(id bigint, error text)
        WHERE message.id = settled.id
    """
    RETRIED = """
        UPDATE {table} message
        SET available_at = statement_timestamp() + settled.delay * interval '1 second', attempts = attempts + 1,
            error = settled.error
        FROM jsonb_to_recordset(%s::jsonb) AS settled(id bigint, error text, delay double precision)
        WHERE message.id = settled.id
    """

    def begin(self, max_seconds: float) -> None:
        # A settlement lost in a crash of the server only sends the messages again, so its commit need not wait for the
        # disk. The timeout ends the transaction of a relay that stands still without dying.
        milliseconds = min(max(round(max_seconds * 1000), 1), MAX_TIMEOUT)
        self.execute(
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; SET LOCAL synchronous_commit TO off; "
            f"SET LOCAL idle_in_transaction_session_timeout TO {milliseconds}"
        )

    def lock(self, publisher: str, limit: int, max_bytes: int) -> Claim:
        rows = self.fetch(CLAIM, [publisher, limit, max_bytes])
        messages = [
            Message(id, message_id, type, topic, key, payload.encode(), read_headers(headers), occurred_at, attempts)
            for id, message_id, type, topic, key, payload, headers, occurred_at, attempts, _before in rows
        ]
        return Claim(messages)

    def purge(self, older_than: float, limit: int) -> int:
        return self.execute(PURGE, [older_than, limit])
