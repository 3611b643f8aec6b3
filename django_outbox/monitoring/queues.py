"""The messages of an outbox: pending ones in queues, the heads of keys, and failed ones by cause.

The head of a partition is its oldest undelivered message, for which all others of the partition wait. Every query is
bounded and reads an index.
"""

import datetime
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Count as CountRows
from django.db.models import Q
from django.db.models.functions import Left

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Pause, StreamPosition
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY, batches
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


@dataclass(frozen=True, slots=True)
class Heads:
    """Figures of a publisher's heads. Messages are `waiting` if they would be due, but their head is not.

    Args:
        behind_paused: those that wait behind a head that is held because its type is paused, by that type.
    """

    complete: bool = True
    retrying: Count = NONE
    waiting: Count = NONE
    oldest_due: datetime.datetime | None = None
    blocked_keys: tuple[BlockedKey, ...] = ()
    behind_paused: Mapping[str, Count] = field(default_factory=dict)


class Head(NamedTuple):
    """The head of a partition, with the number of undelivered messages there, and of those that are due."""

    id: int
    available_at: datetime.datetime | None
    size: int
    due: int
    is_due: bool


def read_heads(using: str, publisher: str) -> Heads:
    """Read the figures of a publisher's heads."""
    heads, complete = _list_heads(using, publisher)
    due_at = [head.available_at for head in heads if head.is_due and head.available_at]
    retrying = set(_find_retrying(using, heads))
    blocking = [head for head in heads if head.size > 1 and (head.available_at is None or head.id in retrying)]
    blocking.sort(key=lambda head: (-head.size, head.id))
    messages = OutboxMessage.objects.using(using)
    behind_paused: Counter[str] = Counter()
    paused = {head.id: head.due for head in heads if head.due and head.available_at == HELD_BY_PAUSE}
    for ids in batches(paused):
        for id, type in messages.filter(pk__in=ids).values_list("pk", "type"):
            behind_paused[type] += paused[id]
    more = not complete
    return Heads(
        complete=complete,
        retrying=Count(len(retrying), more),
        waiting=Count(sum(head.due for head in heads if not head.is_due), more),
        oldest_due=min(due_at, default=None),
        blocked_keys=describe_blocked(
            messages, {head.id: Count(head.size - 1, more) for head in blocking[:MAX_BLOCKED]}
        ),
        behind_paused={type: Count(number, more) for type, number in behind_paused.items()},
    )


def list_retrying(using: str, publisher: str, limit: int) -> list[int]:
    """Return the ids of a publisher's heads that wait for another attempt, at most `limit`."""
    heads, _ = _list_heads(using, publisher)
    return list(islice(_find_retrying(using, heads), limit))


def _list_heads(using: str, publisher: str) -> tuple[list[Head], bool]:
    """Return the heads among the first undelivered messages of a publisher with a key, and whether these are all."""
    messages = _undelivered(OutboxMessage.objects.using(using).filter(publisher=publisher))
    entries = list(messages.values_list("partition", "id", "available_at")[:MAX_ENTRIES])
    # Read afterwards, so that what was enqueued in the meantime counts as due.
    now = read_clock(using)
    heads = []
    for _, group in groupby(entries, key=itemgetter(0)):
        members = [(id, available_at) for _, id, available_at in group]
        due = sum(at is not None and at <= now for _, at in members)
        first, at = members[0]
        heads.append(Head(first, at, len(members), due, at is not None and at <= now))
    return heads, len(entries) < MAX_ENTRIES


def _find_retrying(using: str, heads: Iterable[Head]) -> Iterator[int]:
    later = [head.id for head in heads if not head.is_due and head.available_at and head.available_at < HELD_BY_PAUSE]
    messages = OutboxMessage.objects.using(using).filter(attempts__gt=0).order_by("pk")
    for ids in batches(later):
        yield from messages.filter(pk__in=ids).values_list("pk", flat=True)


def _undelivered(messages: OutboxMessageQuerySet) -> OutboxMessageQuerySet:
    """Return the undelivered messages with a key, in the order of the index of the partitions."""
    # SQLite finds the index by one of both conditions: its condition is spelled by the release that made it.
    messages = messages.filter(WITH_KEY, blocks_key=True).order_by("publisher", "partition", "id")
    if connections[messages.db].features.supports_partial_indexes:
        return messages
    # Here the index has the processed messages as well.
    return messages.filter(processed_at=None)


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
            error=first_line(head.error),
            next_attempt=head.available_at,
        )
        for head in messages.filter(pk__in=waiting).defer("payload", "headers")
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
    # The clock of each statement, so that what was enqueued after `now` does not count as delayed.
    due, held = Q(available_at__lte=DatabaseNow()), Q(available_at__gte=HELD_BY_PAUSE)
    unkeyed = messages.filter(WITHOUT_KEY)
    unkeyed_due = _count(unkeyed.filter(due), MAX_COUNT, all=Q())["all"]
    unkeyed_held = _count(unkeyed.filter(held), MAX_COUNT, all=Q())["all"]
    unkeyed_later = unkeyed.filter(available_at__gt=DatabaseNow(), available_at__lt=HELD_BY_PAUSE)
    later = _count(unkeyed_later, MAX_ROWS, all=Q(), tried=Q(attempts__gt=0))
    keyed = _count_keyed(messages, due=due, held=held)
    retrying = later["tried"] + heads.retrying
    keyed_due = Count(max(keyed["due"].number - heads.waiting.number, 0), keyed["due"].more)
    all_due = (unkeyed_due + keyed_due + Count(streamed.number, streamed.more)).up_to(MAX_COUNT)
    oldest = [unkeyed.filter(due).values_list("available_at", flat=True).first(), heads.oldest_due, streamed.oldest]
    # Relays deliver between two statements: what was the oldest message may be delivered when messages are counted.
    known = [each for each in oldest if each is not None and all_due]
    return PublisherStatus(
        alias=publisher,
        due=all_due,
        oldest_due=max((now - min(known)).total_seconds(), 0.0) if known else None,
        oldest_is_exact=heads.complete,
        blocked=heads.waiting,
        retrying=retrying,
        delayed=later["all"] + keyed["all"] - keyed["due"] - keyed["held"] - retrying,
        held=unkeyed_held + keyed["held"],
    )


def count_held(pause: Pause) -> Count:
    """Count the messages of a paused type that are held; a paused publisher holds none."""
    held = OutboxMessage.objects.using(pause._state.db).filter(publisher=pause.publisher, available_at=HELD_BY_PAUSE)
    held = held.order_by("publisher", "blocks_key", "available_at", "id")
    parts = (WITHOUT_KEY, WITH_KEY) if pause.type else ()
    return sum((_count(held.filter(part), MAX_ROWS, all=Q(type=pause.type))["all"] for part in parts), NONE)


def read_queues(using: str, publishers: Iterable[str]) -> list[PublisherStatus]:
    """Read the figures of the pending messages of some publishers."""
    store, now = get_store(connections[using]), read_clock(using)
    streams = find_streams(store)
    return [
        read_queue(using, alias, now, read_heads(using, alias), read_stream(using, alias, streams))
        for alias in publishers
    ]


def read_stream(using: str, publisher: str, streams: Collection[str]) -> Waiting:
    """Count the messages of a publisher's stream that are not delivered; none if it is not one of the `streams`."""
    if publisher not in streams:
        return Waiting()
    return Stream(PostgreSQLStore(connections[using]), publisher).measure(MAX_ROWS)


def _count_keyed(messages: OutboxMessageQuerySet, **conditions: Q) -> dict[str, Count]:
    pending = Q(available_at__isnull=False)
    if connections[messages.db].features.supports_partial_indexes:
        return _count(messages.filter(WITH_KEY, pending), MAX_COUNT, all=Q(), **conditions)
    # The index by due time has the processed messages as well there.
    return _count(_undelivered(messages), MAX_COUNT, all=pending, **conditions)


def _count(messages: OutboxMessageQuerySet, limit: int, **conditions: Q) -> dict[str, Count]:
    """Count the first messages that fulfil each condition, among at most `limit` ones."""
    counts = {"total": CountRows("pk")}
    for name, condition in conditions.items():
        counts[name] = CountRows("pk", filter=condition) if condition else CountRows("pk")
    figures = messages[: limit + 1].aggregate(**counts)
    more = figures["total"] > limit
    return {name: Count(min(figures[name], limit), more) for name in conditions}


MAX_FAILURES = 10_000
"""Maximum number of failed messages that are read and grouped by their error, the newest first."""

TALLY_SECONDS = 60.0
"""Age up to which a tally is used: 100,000 messages take PostgreSQL 0.5 s and MariaDB 1.4 s on a busy machine."""

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
    failed: Mapping[str, Count]
    blocking: Mapping[str, Count]
    blocking_ids: Mapping[tuple[str, int], int]


def list_failures(using: str, limit: int) -> tuple[list[Failure], bool]:
    """Return the newest failed messages, at most `limit`, and whether there are more."""
    newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
    found = [Failure(*row) for row in newest.values_list(*Failure._fields[:-1], ERROR_START)[: limit + 1]]
    return found[:limit], len(found) > limit


Tally = dict[tuple[str, str, str], tuple[Count, Count]]
"""How many messages failed, and how many of them block their key, by publisher, error class and type."""

_tallies: dict[tuple[str, ...], tuple[float, Tally]] = {}


def database_key(using: str) -> tuple[str, ...]:
    """Return what names a database: a test's has the alias of the project's, and each tenant may have its schema."""
    connection = connections[using]
    return using, str(connection.settings_dict["NAME"]), getattr(connection, "schema_name", "")


def _tally(found: Iterable[tuple[str, str, str, bool, int]], *, more: bool) -> Tally:
    """Add up counts of publishers, error classes and types, with those that block their key apart."""
    failed: Counter[tuple[str, str, str]] = Counter()
    blocking: Counter[tuple[str, str, str]] = Counter()
    for publisher, error_class, type, blocks_key, number in found:
        failed[publisher, error_class, type] += number
        blocking[publisher, error_class, type] += number * bool(blocks_key)
    return {cause: (Count(number, more), Count(blocking[cause], more)) for cause, number in failed.items()}


def _count_failures(using: str) -> Tally:
    """Count the newest failed messages, at most `MAX_COUNT`; the result is kept for `TALLY_SECONDS`."""
    key = database_key(using)
    read_at, known = _tallies.get(key, (0.0, None))
    if known is None or time.monotonic() - read_at > TALLY_SECONDS:
        newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
        columns: Any = newest.values("publisher", "error_class", "type", "blocks_key")[:MAX_COUNT]
        sql, params = columns.query.get_compiler(using).as_sql()
        with connections[using].cursor() as cursor:
            cursor.execute(
                "SELECT publisher, error_class, type, blocks_key, COUNT(*) "  # noqa: S608 - Django's own statement
                f"FROM ({sql}) newest GROUP BY publisher, error_class, type, blocks_key",
                params,
            )
            rows = cursor.fetchall()
        known = _tally(rows, more=sum(row[-1] for row in rows) == MAX_COUNT)
        _tallies[key] = (time.monotonic(), known)
    return known


def read_failures(using: str) -> Failures:
    """Read and group the newest failed messages of a database, and count up to `MAX_COUNT`."""
    found, more = list_failures(using, MAX_FAILURES)
    tally = _count_failures(using) if more else _tally([(*each[:3], each.blocks_key, 1) for each in found], more=False)
    none = Count(more=any(number.more for number, _ in tally.values()))
    failed: defaultdict[str, Count] = defaultdict(lambda: none)
    blocking: defaultdict[str, Count] = defaultdict(lambda: none)
    for (publisher, *_), (number, of_them) in tally.items():
        failed[publisher] += number
        blocking[publisher] += of_them
    blocking_ids: dict[tuple[str, int], int] = {}
    for each in found:
        if each.blocks_key:
            blocking_ids.setdefault((each.publisher, each.partition), each.id)
    by_cause = _group_by_cause(found)
    errors = Counter((publisher, error_class, type) for publisher, error_class, type, _ in by_cause)
    groups = []
    for (publisher, error_class, type, name), members in by_cause.items():
        counted = Count(len(members), more), Count(sum(each.blocks_key for each in members), more)
        # Errors are not compared in the database: several of one class and type are counted among the newest only.
        if more and errors[publisher, error_class, type] == 1:
            counted = tally.get((publisher, error_class, type), counted)
        groups.append(
            FailureGroup(
                publisher=publisher,
                error_class=error_class,
                type=type,
                fingerprint=name,
                example=first_line(members[0].error),
                count=counted[0],
                blocking=counted[1],
                first=members[-1].failed_at,
                last=members[0].failed_at,
            )
        )
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
