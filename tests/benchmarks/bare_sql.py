"""The limit of the database: claim and settle in bare SQL, by Django's own client."""

from concurrent.futures import ThreadPoolExecutor

from django.db import OperationalError, connection, connections, transaction

from tests.benchmarks.measuring import Run, timed
from tests.benchmarks.tables import TABLE

DUE = f"""
SELECT id FROM {TABLE} WHERE publisher = 'default' AND NOT blocks_key AND available_at <= %s
ORDER BY available_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""
RETURNED = "id, message_id::text, type, topic, key, payload::text, headers::text, attempts"

# In one statement: claimed and settled messages are the same.
POSTGRESQL = {
    True: f"DELETE FROM {TABLE} WHERE id = ANY(ARRAY({DUE})) RETURNING {RETURNED}",
    False: f"UPDATE {TABLE} SET processed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1 "
    f"WHERE id = ANY(ARRAY({DUE})) RETURNING {RETURNED}",
}

# MariaDB's UPDATE returns nothing.
MYSQL_CLAIM = f"""
SELECT id, message_id, type, topic, `key`, payload, headers, attempts FROM {TABLE} FORCE INDEX (outbox_pending)
WHERE publisher = 'default' AND blocks_key = 0 AND available_at <= %s
ORDER BY available_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""
MYSQL_SETTLE = {
    True: f"DELETE message FROM {TABLE} message FORCE INDEX (PRIMARY) WHERE id IN %s",
    False: f"UPDATE {TABLE} FORCE INDEX (PRIMARY) SET processed_at = UTC_TIMESTAMP(6), available_at = NULL, "
    "attempts = attempts + 1 WHERE id IN %s",
}
MYSQL_DEADLOCK = 1213

LATER = "9999-01-01"


def drain_in_bare_sql(*, batch_size: int, workers: int, delete: bool) -> Run:
    """Claim and settle all messages by threads with a connection each."""

    def work(_number: int) -> int:
        done = 0
        try:
            while found := _claim_and_settle_again(batch_size, delete=delete):
                done += found
        finally:
            connections.close_all()
        return done

    with ThreadPoolExecutor(workers) as pool:
        return timed(lambda: sum(pool.map(work, range(workers))))


def _claim_and_settle_again(batch_size: int, *, delete: bool) -> int:
    """Repeat it after a deadlock: on MariaDB two workers may each have locked the row that the other claims next."""
    while True:
        try:
            return _claim_and_settle(batch_size, delete=delete)
        except OperationalError as error:
            if error.args[0] != MYSQL_DEADLOCK:
                raise


def _claim_and_settle(batch_size: int, *, delete: bool) -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SET LOCAL synchronous_commit TO off")
            cursor.execute(POSTGRESQL[delete], [LATER, batch_size])
            return len(cursor.fetchall())
        cursor.execute(MYSQL_CLAIM, [LATER, batch_size])
        ids = [row[0] for row in cursor.fetchall()]
        if ids:
            cursor.execute(MYSQL_SETTLE[delete], [ids])
        return len(ids)
