"""Statements for MySQL and MariaDB."""

from django_outbox.models import MAX_HISTORY
from django_outbox.stores.locks import KEY_LOCKS
from django_outbox.stores.rows import MAX_HISTORY_ERROR_LENGTH

# Due messages are read first and then locked by their ids. A locking read of a range would also lock the index entry
# after its end, which may be another relay's message, and two relays would wait for each other.
#
# The index is forced because the optimiser may otherwise scan the primary key. The publisher is compared twice: the
# column's collation can use the index but takes `Orders` for `orders`.
UNKEYED = """
SELECT id, CAST(available_at AS CHAR)
FROM {table} FORCE INDEX (outbox_pending)
WHERE publisher = %s AND blocks_key = 0 AND available_at <= UTC_TIMESTAMP(6) AND available_at >= %s
    AND (available_at > %s OR id > %s)
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY available_at, id
LIMIT %s
"""

LOCK = """
SELECT id, LENGTH(payload) + LENGTH(headers) FROM {table} FORCE INDEX (PRIMARY)
WHERE id IN ({ids}) AND available_at <= UTC_TIMESTAMP(6)
FOR UPDATE SKIP LOCKED
"""

# Times are cast because the driver parses them in Python, which takes longer than all other columns together.
READ = """
SELECT id, message_id, type, topic, `key`, payload, headers, CAST(occurred_at AS CHAR), attempts, error_class,
    LENGTH(payload) + LENGTH(headers), CAST(available_at AS CHAR)
FROM {table} FORCE INDEX (PRIMARY) WHERE id IN ({ids})
"""

# Messages that have changed since they were listed, or that another transaction has locked, are left out.
READ_AND_LOCK = f"{READ.rstrip()} AND available_at <= UTC_TIMESTAMP(6) FOR UPDATE SKIP LOCKED"

# MariaDB has no LATERAL and does not choose a loose index scan, so this reads a stretch of the index, and the first row
# of each partition in it.
LIST_HEADS = """
SELECT message.`partition`, message.available_at <= UTC_TIMESTAMP(6), size
FROM (
    SELECT MIN(id) AS first, COUNT(*) AS size
    FROM (
        SELECT `partition`, id
        FROM {table} FORCE INDEX (outbox_partitions)
        WHERE processed_at IS NULL AND blocks_key = 1 AND publisher = %s AND `partition` > %s AND `partition` <= %s
            AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
        ORDER BY `partition`, id
        LIMIT %s
    ) stretch
    GROUP BY `partition`
) head
STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = first
ORDER BY 1
"""

# Two ranges, because a comparison of pairs would read all messages of the first moment each time.
LIST_FRESH = """
(SELECT `partition`, CAST(available_at AS CHAR), id FROM {table} FORCE INDEX (outbox_pending)
WHERE publisher = %s AND blocks_key = 1 AND available_at = %s AND id > %s
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY available_at, id LIMIT %s)
UNION ALL
(SELECT `partition`, CAST(available_at AS CHAR), id FROM {table} FORCE INDEX (outbox_pending)
WHERE publisher = %s AND blocks_key = 1 AND available_at > %s AND available_at <= UTC_TIMESTAMP(6)
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY available_at, id LIMIT %s)
"""

# By `id` alone, MySQL would sort the whole queue of the partition.
FIND_DUE = """
SELECT number FROM JSON_TABLE('[{ids}]', '$[*]' COLUMNS (number INT PATH '$')) wanted
WHERE (
    SELECT available_at <= UTC_TIMESTAMP(6) FROM {table} FORCE INDEX (outbox_partitions)
    WHERE processed_at IS NULL AND blocks_key = 1 AND publisher = %s AND `partition` = number
        AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
    ORDER BY `partition`, id LIMIT 1
)
"""

LOCK_SLOTS = "SELECT number FROM {locks} FORCE INDEX (PRIMARY) WHERE number IN ({ids}) FOR UPDATE SKIP LOCKED"

FIND_SLOT = "SELECT 1 FROM {locks} WHERE number = %s"

ADD_SLOTS = "INSERT IGNORE INTO {{locks}} (number) VALUES {rows}"

# One branch for each partition, because in a recursive query from message to message MySQL reads and sorts a whole key
# at each step. Under READ COMMITTED it sees everything that earlier owners of the slots have settled.
QUEUES = """
SELECT message.`partition`, message.id, message.available_at <= UTC_TIMESTAMP(6),
    LENGTH(message.payload) + LENGTH(message.headers)
FROM ({queues}) queue STRAIGHT_JOIN {{table}} message FORCE INDEX (PRIMARY) ON message.id = queue.id
ORDER BY 1, 2
"""

QUEUE = """
(SELECT id FROM {{table}} FORCE INDEX (outbox_partitions)
WHERE processed_at IS NULL AND blocks_key = 1 AND publisher = %s AND `partition` = {partition}
    AND CONVERT(publisher USING utf8mb4) COLLATE utf8mb4_bin = %s
ORDER BY id LIMIT {depth})
"""

# All rows exist before any is locked. If one were missing, transactions would lock the gap in its place and then wait
# for each other to insert it.
LOCK_KEYS = "SELECT number FROM {locks} FORCE INDEX (PRIMARY) WHERE number IN ({ids}) ORDER BY number FOR UPDATE"
FIND_KEY_LOCKS = f"SELECT number FROM {{locks}} WHERE number < {KEY_LOCKS}"

FIND_MESSAGES = "SELECT message_id, publisher FROM {{table}} WHERE message_id IN ({ids})"

# Not from JSON_TABLE: for INSERT ... SELECT, MariaDB by default locks the counter of ids until the statement ends, and
# every transaction that enqueues would wait. INSERT IGNORE would turn every other error into a warning, and a lost
# message.
INSERT_ROWS = """INSERT INTO {{table}} (
    message_id, type, topic, `key`, `partition`, blocks_key, payload, headers, occurred_at, publisher, available_at,
    attempts, error, error_class
) VALUES {rows}
ON DUPLICATE KEY UPDATE message_id = {{table}}.message_id
"""

NEW_ROW = "(%s, %s, %s, %s, %s, %s, %s, %s, COALESCE(%s, UTC_TIMESTAMP(6)), %s, UTC_TIMESTAMP(6), 0, '', '')"

# Begins after the last batch: while an old snapshot is held, the index entries of deleted messages remain, and a batch
# from the start of the index would step over all of them.
OLD = """
SELECT id, CAST(processed_at AS CHAR) FROM {table} FORCE INDEX (outbox_processed)
WHERE processed_at < UTC_TIMESTAMP(6) - INTERVAL %s MICROSECOND AND processed_at >= %s
    AND (processed_at > %s OR id > %s)
ORDER BY processed_at, id LIMIT %s
"""

# A DELETE from a single table takes no hint; see `MySQLStore.DELETED`.
PURGE = """
DELETE message
FROM JSON_TABLE('[{ids}]', '$[*]' COLUMNS (id BIGINT PATH '$')) old
STRAIGHT_JOIN {table} message FORCE INDEX (PRIMARY) ON message.id = old.id
WHERE message.processed_at IS NOT NULL
"""

# The newest attempt comes first, and the oldest is cut off the end.
HISTORY = f"""JSON_REMOVE(
                JSON_ARRAY_INSERT(COALESCE(message.history, JSON_ARRAY()), '$[0]', JSON_OBJECT(
                    'at', DATE_FORMAT(UTC_TIMESTAMP(6), '%%Y-%%m-%%dT%%H:%%i:%%s.%%fZ'),
                    'error_class', settled.error_class, 'error', LEFT(settled.error, {MAX_HISTORY_ERROR_LENGTH})
                )),
                '$[{MAX_HISTORY}]'
            )"""

CHARACTER_SETS = """
SELECT DISTINCT character_set_name FROM information_schema.columns
WHERE table_schema = DATABASE() AND table_name = %s AND column_name IN ('type', 'topic', 'key', 'publisher', 'error')
"""
