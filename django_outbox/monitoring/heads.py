"""Heads: the oldest undelivered message of each partition, for which all others of the partition wait."""

import datetime
from dataclasses import dataclass
from functools import partial

from django_outbox.models import OutboxMessage, OutboxMessageQuerySet
from django_outbox.monitoring.types import NONE, BlockedKey, Count
from django_outbox.stores import Store

MAX_ENTRIES = 10_000
"""Maximum number of entries of the index of the partitions from which heads are listed."""

MAX_BLOCKED = 20
"""Maximum number of blocked keys of a publisher that are listed."""

# Scalar subqueries look up each head by its id. For a join, PostgreSQL reads the whole table.
HEADS = """
FROM (
    SELECT id, size, (
        SELECT CASE
            WHEN message.available_at IS NULL THEN 'failed'
            WHEN message.available_at <= {now} THEN 'due'
            WHEN message.attempts > 0 THEN 'retrying'
            ELSE 'delayed'
        END
        FROM {{table}} message WHERE message.id = oldest.id
    ) AS state
    FROM (
        SELECT MIN(id) AS id, COUNT(*) AS size
        FROM (
            SELECT {{table}}.partition AS number, {{table}}.id AS id FROM {{table}} {use_partitions}
            WHERE {undelivered} AND publisher = %s
            ORDER BY {{table}}.partition, {{table}}.id LIMIT %s
        ) stretch
        GROUP BY number
    ) oldest
) head
"""

TOTALS = "SELECT COALESCE(SUM(size), 0), COUNT(CASE WHEN state = 'retrying' THEN 1 END) {heads}"

OLDEST_DUE = """
SELECT id FROM (
    SELECT id, (SELECT message.available_at FROM {{table}} message WHERE message.id = head.id) AS due_at
    {heads} WHERE state = 'due'
) due ORDER BY due_at, id LIMIT 1
"""

BLOCKED = "SELECT id, size - 1 {heads} WHERE state IN ('failed', 'retrying') ORDER BY size DESC, id LIMIT %s"


RETRYING = "SELECT id {heads} WHERE state = 'retrying' ORDER BY id LIMIT %s"


@dataclass(frozen=True, slots=True)
class Heads:
    """Figures of a publisher's heads.

    Args:
        complete: whether all heads were looked at.
        retrying: the heads that wait for another attempt.
        oldest_due: since when the oldest due head has been due.
        blocked: the heads for which other messages wait because they failed or were deferred.
    """

    complete: bool = True
    retrying: Count = NONE
    oldest_due: datetime.datetime | None = None
    blocked: tuple[BlockedKey, ...] = ()


def read_heads(store: Store, publisher: str) -> Heads:
    """Read the figures of a publisher's heads."""
    fetch = partial(_fetch, store, publisher)
    ((size, retrying),) = fetch(TOTALS)
    if not size:
        return Heads()
    messages = OutboxMessage.objects.using(store.connection.alias)
    complete = size < MAX_ENTRIES
    return Heads(
        complete=complete,
        retrying=Count(int(retrying), more=not complete),
        oldest_due=messages.filter(pk__in=[id for (id,) in fetch(OLDEST_DUE)])
        .values_list("available_at", flat=True)
        .first(),
        blocked=describe_blocked(
            messages, {id: Count(int(size), more=not complete) for id, size in fetch(BLOCKED, MAX_BLOCKED)}
        ),
    )


def list_retrying(store: Store, publisher: str, limit: int) -> list[int]:
    """Return the ids of a publisher's heads that wait for another attempt, at most `limit`."""
    return [id for (id,) in _fetch(store, publisher, RETRYING, limit)]


def _fetch(store: Store, publisher: str, sql: str, *params: int) -> list[tuple[int, ...]]:
    heads = HEADS.format(now=store.now, undelivered=store.undelivered, use_partitions=store.use_partitions)
    return store.fetch(sql.format(heads=heads), [publisher, MAX_ENTRIES, *params])


def describe_blocked(messages: OutboxMessageQuerySet, waiting: dict[int, Count]) -> tuple[BlockedKey, ...]:
    """Return the keys that wait behind these heads, the one with the most messages first.

    Args:
        messages: the messages of the heads' publishers.
        waiting: the number of messages that wait, by the id of the head.
    """
    keys = [
        BlockedKey(
            publisher=head.publisher,
            key=head.key,
            id=head.pk,
            type=head.type,
            failed=head.failed_at is not None,
            error_class=head.error_class,
            since=head.failed_at or head.first_error_at or head.occurred_at,
            waiting=waiting[head.pk],
        )
        for head in messages.filter(pk__in=waiting).defer("payload", "headers", "error")
    ]
    return tuple(sorted(keys, key=lambda key: (-key.waiting.number, key.id)))
