"""The messages of an outbox: pending ones in queues, the heads of keys, and failed ones by cause.

The head of a partition is its oldest undelivered message, for which all others of the partition wait. Every query is
bounded and reads an index.
"""

import datetime
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from django.db import connections
from django.db.models import Count as CountRows
from django.db.models import Q
from django.db.models.functions import Left

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, StreamPosition
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY
from django_outbox.monitoring.figures import NONE, BlockedKey, Count, FailureGroup, PublisherStatus
from django_outbox.stores import Store, get_store
from django_outbox.stores.clock import read_clock
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Stream, Waiting
from django_outbox.utils.text import fingerprint, first_line

MAX_ENTRIES = 10_000
"""Maximum number of entries of the index of the partitions from which heads are listed."""

MAX_BLOCKED = 20
"""Maximum number of blocked keys of a publisher that are listed."""

# Scalar subqueries look up each head by its id. For a join, PostgreSQL reads the whole table.
HEADS = """
FROM (
    SELECT id, size, due, (
        SELECT CASE
            WHEN message.available_at IS NULL THEN 'failed'
            WHEN message.available_at <= {now} THEN 'due'
            WHEN message.attempts > 0 THEN 'retrying'
            ELSE 'delayed'
        END
        FROM {{table}} message WHERE message.id = oldest.id
    ) AS state
    FROM (
        SELECT MIN(id) AS id, COUNT(*) AS size, COUNT(CASE WHEN due_at <= {now} THEN 1 END) AS due
        FROM (
            SELECT {{table}}.partition AS number, {{table}}.id AS id, {{table}}.available_at AS due_at
            FROM {{table}} {use_partitions}
            WHERE {undelivered} AND publisher = %s
            ORDER BY {{table}}.partition, {{table}}.id LIMIT %s
        ) stretch
        GROUP BY number
    ) oldest
) head
"""

TOTALS = """
SELECT COALESCE(SUM(size), 0), COUNT(CASE WHEN state = 'retrying' THEN 1 END),
    COALESCE(SUM(CASE WHEN state <> 'due' THEN due END), 0) {heads}
"""

OLDEST_DUE = """
SELECT id FROM (
    SELECT id, (SELECT message.available_at FROM {{table}} message WHERE message.id = head.id) AS due_at
    {heads} WHERE state = 'due'
) due ORDER BY due_at, id LIMIT 1
"""

BLOCKED = (
    "SELECT id, size - 1 {heads} WHERE size > 1 AND state IN ('failed', 'retrying') ORDER BY size DESC, id LIMIT %s"
)


RETRYING = "SELECT id {heads} WHERE state = 'retrying' ORDER BY id LIMIT %s"


@dataclass(frozen=True, slots=True)
class Heads:
    """Figures of a publisher's heads. Messages are `waiting` if they would be due, but their head is not."""

    complete: bool = True
    retrying: Count = NONE
    waiting: Count = NONE
    oldest_due: datetime.datetime | None = None
    blocked_keys: tuple[BlockedKey, ...] = ()


def read_heads(store: Store, publisher: str) -> Heads:
    """Read the figures of a publisher's heads."""
    fetch = partial(_fetch, store, publisher)
    ((size, retrying, waiting),) = fetch(TOTALS)
    if not size:
        return Heads()
    messages = OutboxMessage.objects.using(store.connection.alias)
    complete = size < MAX_ENTRIES
    return Heads(
        complete=complete,
        retrying=Count(int(retrying), more=not complete),
        waiting=Count(int(waiting), more=not complete),
        oldest_due=messages.filter(pk__in=[id for (id,) in fetch(OLDEST_DUE)])
        .values_list("available_at", flat=True)
        .first(),
        blocked_keys=describe_blocked(
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
    """Return the keys that wait behind these heads, the one with the most messages first."""
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


MAX_COUNT = 100_000
"""Maximum number of entries of an index that one count reads."""

MAX_ROWS = 10_000
"""Maximum number of rows of the table that one count reads, because they cost more than entries of an index."""


def find_streams(store: Store) -> dict[str, StreamPosition]:
    """Return the positions of streams by publisher, including streams that the settings name and no relay has begun."""
    if not store.streams:
        return {}
    positions = StreamPosition.objects.using(store.connection.alias).order_by("publisher")
    return {
        **{alias: StreamPosition(publisher=alias) for alias in get_settings().streamed},
        **{position.publisher: position for position in positions},
    }


def read_queue(using: str, publisher: str, now: datetime.datetime, heads: Heads, streamed: Waiting) -> PublisherStatus:
    """Read the figures of a publisher's pending messages; those of its stream that are not delivered are due, too."""
    messages = OutboxMessage.objects.using(using).filter(publisher=publisher)
    messages = messages.order_by("publisher", "blocks_key", "available_at", "id")
    due = Q(available_at__lte=now)
    unkeyed = messages.filter(WITHOUT_KEY)
    unkeyed_due = _count(unkeyed.filter(due), MAX_COUNT, all=Q())["all"]
    unkeyed_later = _count(unkeyed.filter(available_at__gt=now), MAX_ROWS, all=Q(), tried=Q(attempts__gt=0))
    keyed = _count_keyed(messages, due)
    oldest = [unkeyed.filter(due).values_list("available_at", flat=True).first(), heads.oldest_due, streamed.oldest]
    later = unkeyed_later["all"] + keyed["all"] - keyed["due"]
    retrying = unkeyed_later["tried"] + heads.retrying
    known = [each for each in oldest if each is not None]
    keyed_due = Count(max(keyed["due"].number - heads.waiting.number, 0), keyed["due"].more)
    return PublisherStatus(
        alias=publisher,
        due=(unkeyed_due + keyed_due + Count(streamed.number, streamed.more)).up_to(MAX_COUNT),
        oldest_due=max((now - min(known)).total_seconds(), 0.0) if known else None,
        oldest_is_exact=heads.complete,
        blocked=heads.waiting,
        retrying=retrying,
        delayed=later - retrying,
    )


def read_queues(using: str, publishers: Iterable[str]) -> list[PublisherStatus]:
    """Read the figures of the pending messages of some publishers."""
    store, now = get_store(connections[using]), read_clock(using)
    streams = find_streams(store)
    return [
        read_queue(using, alias, now, read_heads(store, alias), read_stream(using, alias, streams))
        for alias in publishers
    ]


def read_stream(using: str, publisher: str, streams: Collection[str]) -> Waiting:
    """Count the messages of a publisher's stream that are not delivered; none if it is not one of the `streams`."""
    if publisher not in streams:
        return Waiting()
    return Stream(PostgreSQLStore(connections[using]), publisher).measure(MAX_ROWS)


def _count_keyed(messages: OutboxMessageQuerySet, due: Q) -> dict[str, Count]:
    pending = Q(available_at__isnull=False)
    if connections[messages.db].features.supports_partial_indexes:
        return _count(messages.filter(WITH_KEY, pending), MAX_COUNT, all=Q(), due=due)
    # The index by due time has the processed messages as well there, so the one that ends at the undelivered is read.
    undelivered = messages.filter(blocks_key=True, processed_at=None).order_by("partition", "id")
    return _count(undelivered, MAX_COUNT, all=pending, due=due)


def _count(messages: OutboxMessageQuerySet, limit: int, **conditions: Q) -> dict[str, Count]:
    """Count the first messages that fulfil each condition, among at most `limit` ones."""
    counts = {"total": CountRows("pk")}
    for name, condition in conditions.items():
        counts[name] = CountRows("pk", filter=condition) if condition else CountRows("pk")
    figures = messages[: limit + 1].aggregate(**counts)
    more = figures["total"] > limit
    return {name: Count(min(figures[name], limit), more) for name in conditions}


MAX_FAILURES = 10_000
"""Maximum number of failed messages that are read, the newest first."""

MAX_WAITING = 1000
"""Maximum number of messages that are counted behind a failed one."""

MAX_GROUPED_LENGTH = 200
"""Maximum number of characters of an error that are read to group messages."""

MAX_FINGERPRINTS = 10
"""Maximum number of fingerprints of one publisher, error class and type; beyond it, they are one group."""

ERROR_START = Left("error", MAX_GROUPED_LENGTH)
"""The part of an error that its fingerprint is made from."""


class Failure(NamedTuple):
    """A failed message, with `ERROR_START` of its error."""

    publisher: str
    error_class: str
    type: str
    failed_at: datetime.datetime
    blocks_key: bool
    partition: int
    id: int
    error: str


@dataclass(frozen=True, slots=True)
class Failures:
    """The newest failed messages; `blocking_ids` is the newest one that blocks its key, by publisher and partition."""

    groups: tuple[FailureGroup, ...]
    complete: bool
    failed: Counter[str]
    blocking: Counter[str]
    blocking_ids: Mapping[tuple[str, int], int]


def list_failures(using: str, limit: int) -> tuple[list[Failure], bool]:
    """Return the newest failed messages, at most `limit`, and whether there are more."""
    newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
    found = [Failure(*row) for row in newest.values_list(*Failure._fields[:-1], ERROR_START)[: limit + 1]]
    return found[:limit], len(found) > limit


def read_failures(using: str) -> Failures:
    """Read and group the newest failed messages of a database."""
    found, more = list_failures(using, MAX_FAILURES)
    failed = Counter(each.publisher for each in found)
    blocking = Counter(each.publisher for each in found if each.blocks_key)
    blocking_ids: dict[tuple[str, int], int] = {}
    for each in found:
        if each.blocks_key:
            blocking_ids.setdefault((each.publisher, each.partition), each.id)
    groups = [
        FailureGroup(
            publisher=publisher,
            error_class=error_class,
            type=type,
            fingerprint=name,
            example=first_line(members[0].error),
            count=Count(len(members), more),
            blocking=Count(sum(each.blocks_key for each in members), more),
            first=members[-1].failed_at,
            last=members[0].failed_at,
        )
        for (publisher, error_class, type, name), members in _group_by_cause(found).items()
    ]
    groups.sort(
        key=lambda group: (-group.count.number, group.publisher, group.error_class, group.type, group.fingerprint)
    )
    return Failures(tuple(groups), not more, failed, blocking, blocking_ids)


def _group_by_cause(failures: Sequence[Failure]) -> dict[tuple[str, str, str, str], list[Failure]]:
    """Return the failures by cause; too many fingerprints of one publisher, error class and type are one group."""
    named = [((each.publisher, each.error_class, each.type), fingerprint(each.error)) for each in failures]
    fingerprints = Counter(cause for cause, _ in set(named))
    groups: defaultdict[tuple[str, str, str, str], list[Failure]] = defaultdict(list)
    for (cause, name), each in zip(named, failures, strict=True):
        groups[(*cause, name if fingerprints[cause] <= MAX_FINGERPRINTS else "")].append(each)
    return groups


def find_blocked_keys(
    using: str, failures: Failures, known: Iterable[BlockedKey], publishers: Collection[str]
) -> tuple[BlockedKey, ...]:
    """Return the keys that failed messages block, without the `known` ones, of publishers with heads not read."""
    messages = OutboxMessage.objects.using(using)
    ids = {key.id for key in known}
    further = [
        (publisher, partition, id)
        for (publisher, partition), id in failures.blocking_ids.items()
        if publisher in publishers and id not in ids
    ]
    waiting: dict[int, Count] = {}
    for publisher, partition, id in further[:MAX_BLOCKED]:
        behind = messages.filter(publisher=publisher, partition=partition, blocks_key=True, processed_at=None)
        number = (
            behind.filter(pk__gt=id).values("pk").order_by("publisher", "partition", "id")[: MAX_WAITING + 1].count()
        )
        if number:
            waiting[id] = Count(min(number, MAX_WAITING), number > MAX_WAITING)
    return describe_blocked(messages.all(), waiting)
