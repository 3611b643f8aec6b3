"""The limit of the database: what is due is claimed and settled with bare SQL, by the client that Django has."""

import threading
import time

from django.db import OperationalError, connection, connections, transaction

from django_outbox.models import OutboxMessage

TABLE = OutboxMessage._meta.db_table

DUE = f"""
SELECT id FROM {TABLE} WHERE publisher = 'default' AND partition = 0 AND available_at <= %s
ORDER BY available_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""  # noqa: S608

RETURNED = "id, message_id::text, type, topic, key, payload::text, headers::text, attempts"

# At once: nothing that was claimed needs to be told apart from what is settled.
POSTGRESQL = {
    True: f"DELETE FROM {TABLE} WHERE id = ANY(ARRAY({DUE})) RETURNING {RETURNED}",  # noqa: S608
    False: f"""
        UPDATE {TABLE} SET processed_at = statement_timestamp(), available_at = NULL, attempts = attempts + 1
        WHERE id = ANY(ARRAY({DUE})) RETURNING {RETURNED}
    """,  # noqa: S608
}

# MariaDB's UPDATE returns nothing.
MYSQL_CLAIM = f"""
SELECT id, message_id, type, topic, `key`, payload, headers, attempts FROM {TABLE} FORCE INDEX (outbox_pending)
WHERE publisher = 'default' AND `partition` = 0 AND available_at <= %s
ORDER BY available_at, id LIMIT %s FOR UPDATE SKIP LOCKED
"""  # noqa: S608
MYSQL_SETTLE = {
    True: f"DELETE message FROM {TABLE} message FORCE INDEX (PRIMARY) WHERE id IN %s",
    False: f"UPDATE {TABLE} FORCE INDEX (PRIMARY) SET processed_at = UTC_TIMESTAMP(6), available_at = NULL, "  # noqa: S608
    "attempts = attempts + 1 WHERE id IN %s",
}
MYSQL_DEADLOCK = 1213

LATER = "9999-01-01"


def drain_in_bare_sql(count: int, *, batch_size: int, workers: int, delete: bool) -> float:
    """Claim and settle all messages, and return how many seconds that took.

    Args:
        count: how many there are.
        batch_size: messages in a claim.
        workers: threads, with a connection each.
        delete: delete them, or else keep them as processed.
    """
    done: list[int] = []

    def work() -> None:
        try:
            while found := _claim_and_settle_again(batch_size, delete=delete):
                done.append(found)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work) for _ in range(workers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - start
    assert sum(done) == count
    return seconds


def _claim_and_settle_again(batch_size: int, *, delete: bool) -> int:
    """Do it, once more whenever two workers have locked what the other one wants next, as happens on MariaDB."""
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
