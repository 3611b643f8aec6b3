"""The undelivered messages of a publisher.

The head of a partition is its oldest undelivered message, for which all others of the partition wait. Every query is
bounded and reads an index.
"""

import datetime
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice, starmap
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Count as CountRows
from django.db.models import F, Max, Min, Q

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import HELD_BY_PAUSE, OutboxMessage, OutboxMessageQuerySet, Pause, StreamPosition
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY, batches
from django_outbox.monitoring.failures import ERROR_START, Failure
from django_outbox.monitoring.figures import NONE, BlockedKey, Count, PublisherStatus
from django_outbox.stores import Store, get_store
from django_outbox.stores.clock import read_clock
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Stream, Waiting
from django_outbox.utils.text import first_line

MAX_ENTRIES = 10_000
"""Maximum number of entries of the index of the partitions from which heads are listed."""

MAX_BLOCKED = 20
"""Maximum number of blocked keys of a publisher that are listed."""

MAX_COUNT = 100_000
"""Maximum number of entries of an index that one count reads."""

MAX_ROWS = 10_000
"""Maximum number of rows of the table that one count reads, because they cost more than entries of an index."""

MAX_OLDEST = 100
"""Maximum number of due messages, and of due heads, among which one that was set aside is looked for, the oldest first.
It is due for a moment when its wait has ended."""

SET_ASIDE = Q(attempts=0, available_at__lte=F("last_error_at") + datetime.timedelta(minutes=1))
"""A message that waits because its destination accepts none. It is not to blame, and counts as due. If it waits longer,
a handler or a server has asked for that."""

LATELY_SET_ASIDE = SET_ASIDE & Q(history__isnull=True)
"""The same for a message that is due because its wait has ended, and not because an operator requeued it."""


@dataclass(frozen=True, slots=True)
class HeadFigures:
    """Figures of a publisher's heads. Messages are `waiting` if they would be due, but their head is not.

    Args:
        set_aside: the heads that count as due although they wait, because their destination accepts none.
        reason: the error of the oldest head that was set aside.
    """

    complete: bool = True
    set_aside: int = 0
    reason: str = ""
    retrying: Count = NONE
    waiting: Count = NONE
    oldest_due: datetime.datetime | None = None
    blocked_keys: tuple[BlockedKey, ...] = ()


class Head(NamedTuple):
    """The head of a partition, with the number of undelivered messages there, and of those that are due."""

    id: int
    available_at: datetime.datetime | None
    size: int
    due: int
    is_due: bool


class Deferred(NamedTuple):
    """A head that waits after an attempt, with `ERROR_START` of its error."""

    id: int
    attempts: int
    first_error_at: datetime.datetime | None
    error: str


def read_queues(using: str, publishers: Iterable[str]) -> list[PublisherStatus]:
    store, now = get_store(connections[using]), read_clock(using)
    streams = find_streams(store)
    return [
        read_queue(using, alias, now, read_heads(using, alias), read_stream(using, alias, streams))
        for alias in publishers
    ]


def read_queue(
    using: str, publisher: str, now: datetime.datetime, heads: HeadFigures, streamed: Waiting
) -> PublisherStatus:
    """Read the figures of a publisher's pending messages; those of its stream that are not delivered are due, too."""
    messages = OutboxMessage.objects.using(using).filter(publisher=publisher)
    messages = messages.order_by("publisher", "blocks_key", "available_at", "id")
    # The clock of each statement, so that what was enqueued after `now` does not count as delayed.
    due, held = Q(available_at__lte=DatabaseNow()), Q(available_at__gte=HELD_BY_PAUSE)
    unkeyed = messages.filter(WITHOUT_KEY)
    unkeyed_due = _count(unkeyed.filter(due), MAX_COUNT, all=Q())["all"]
    unkeyed_held = _count(unkeyed.filter(held), MAX_COUNT, all=Q())["all"]
    unkeyed_later = unkeyed.filter(available_at__gt=DatabaseNow(), available_at__lt=HELD_BY_PAUSE)
    later = _count(unkeyed_later, MAX_ROWS, all=Q(), tried=Q(attempts__gt=0), set_aside=SET_ASIDE)
    aside = [_find_oldest_aside(unkeyed.filter(due)[:MAX_OLDEST], LATELY_SET_ASIDE)]
    if later["set_aside"].number:
        aside.append(_find_oldest_aside(unkeyed_later[:MAX_ROWS], SET_ASIDE))
    since, error = min((each for each in aside if each[0]), default=(None, ""))
    # They are among the first of those that wait: if none was read, there is none.
    set_aside = (later["set_aside"] if later["set_aside"].number else NONE) + Count(heads.set_aside)
    keyed = _count_keyed(messages, due=due, held=held)
    retrying = later["tried"] + heads.retrying
    keyed_due = Count(max(keyed["due"].number - heads.waiting.number, 0), keyed["due"].more)
    all_due = (unkeyed_due + keyed_due + set_aside + Count(streamed.number, streamed.more)).up_to(MAX_COUNT)
    first = unkeyed.filter(due).values_list("available_at", flat=True).first()
    oldest = [first, since, heads.oldest_due, streamed.oldest]
    # Messages are enqueued and delivered between two statements, so there may be an oldest without a count, and
    # a count without an oldest.
    known = [each for each in oldest if each is not None]
    return PublisherStatus(
        alias=publisher,
        due=all_due,
        oldest_due=max((now - min(known, default=now)).total_seconds(), 0.0) if all_due else None,
        oldest_is_exact=heads.complete,
        blocked=heads.waiting,
        retrying=retrying,
        delayed=later["all"] + keyed["all"] - keyed["due"] - keyed["held"] - retrying - set_aside,
        held=unkeyed_held + keyed["held"],
        not_accepted=heads.reason or first_line(error),
    )


def _find_oldest_aside(messages: OutboxMessageQuerySet, condition: Q) -> tuple[Any, Any]:
    """Return since when the first of these messages was set aside, and an error; None twice if none was."""
    found = messages.aggregate(since=Min("first_error_at", filter=condition), error=Max(ERROR_START, filter=condition))
    return found["since"], found["error"]


def count_held(pause: Pause) -> Count:
    """Count the messages of a paused type that are held; a paused publisher holds none."""
    held = OutboxMessage.objects.using(pause._state.db).filter(publisher=pause.publisher, available_at=HELD_BY_PAUSE)
    held = held.order_by("publisher", "blocks_key", "available_at", "id")
    parts = (WITHOUT_KEY, WITH_KEY) if pause.type else ()
    return sum((_count(held.filter(part), MAX_ROWS, all=Q(type=pause.type))["all"] for part in parts), NONE)


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


def read_heads(using: str, publisher: str) -> HeadFigures:
    heads, complete = _list_heads(using, publisher)
    due = {head.id for head in heads if head.is_due}
    deferred = list(_find_deferred(using, heads))
    retrying = {each.id for each in deferred if each.attempts and each.id not in due}
    set_aside = {each.id: each for each in deferred if not each.attempts and each.first_error_at}
    heads = [
        head._replace(available_at=set_aside[head.id].first_error_at, is_due=True) if head.id in set_aside else head
        for head in heads
    ]
    oldest = min(set_aside.values(), key=attrgetter("first_error_at"), default=None)
    due_at = [head.available_at for head in heads if head.is_due and head.available_at]
    blocking = [head for head in heads if head.size > 1 and (head.available_at is None or head.id in retrying)]
    blocking.sort(key=lambda head: (-head.size, head.id))
    messages = OutboxMessage.objects.using(using)
    more = not complete
    return HeadFigures(
        complete=complete,
        set_aside=len(set_aside.keys() - due),
        reason=first_line(oldest.error) if oldest else "",
        retrying=Count(len(retrying), more),
        waiting=Count(sum(head.due for head in heads if not head.is_due), more),
        oldest_due=min(due_at, default=None),
        blocked_keys=describe_blocked(
            messages, {head.id: Count(head.size - 1, more) for head in blocking[:MAX_BLOCKED]}
        ),
    )


def _list_heads(using: str, publisher: str, now: datetime.datetime | None = None) -> tuple[list[Head], bool]:
    """Return the heads among the first undelivered messages of a publisher with a key, and whether these are all.

    By default, what is due is decided by a time that is read afterwards, so that a message that is enqueued in the
    meantime counts as due.
    """
    messages = _undelivered(OutboxMessage.objects.using(using).filter(publisher=publisher))
    entries = list(messages.values_list("partition", "id", "available_at")[:MAX_ENTRIES])
    now = now or read_clock(using)
    heads = []
    for _, group in groupby(entries, key=itemgetter(0)):
        members = [(id, available_at) for _, id, available_at in group]
        due = sum(at is not None and at <= now for _, at in members)
        first, at = members[0]
        heads.append(Head(first, at, len(members), due, at is not None and at <= now))
    return heads, len(entries) < MAX_ENTRIES


def _find_deferred(using: str, heads: Iterable[Head]) -> Iterator[Deferred]:
    """Find the heads that wait after an attempt, and those that did so until lately."""
    waiting = [head for head in heads if head.available_at and head.available_at < HELD_BY_PAUSE]
    waiting.sort(key=attrgetter("available_at"))
    later = [head.id for head in waiting if not head.is_due]
    due = [head.id for head in waiting if head.is_due][:MAX_OLDEST]
    messages = OutboxMessage.objects.using(using).order_by("pk")
    for ids, condition in ((later, Q(attempts__gt=0) | SET_ASIDE), (due, LATELY_SET_ASIDE)):
        for part in batches(ids):
            found = messages.filter(condition, pk__in=part)
            fields = found.values_list("pk", "attempts", "first_error_at", ERROR_START)
            yield from starmap(Deferred, fields)


def _undelivered(messages: OutboxMessageQuerySet) -> OutboxMessageQuerySet:
    """Return the undelivered messages with a key, in the order of the index of the partitions."""
    # SQLite finds the index by one of these conditions: which one depends on the release of Django that created it.
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


def find_streams(store: Store) -> dict[str, StreamPosition]:
    """Return the positions of streams by publisher, including streams that the settings name and no relay has begun."""
    if not store.streams:
        return {}
    positions = StreamPosition.objects.using(store.connection.alias).order_by("publisher")
    return {
        **{alias: StreamPosition(publisher=alias) for alias in get_settings().streamed},
        **{position.publisher: position for position in positions},
    }


def read_stream(using: str, publisher: str, streams: Collection[str]) -> Waiting:
    """Count the messages of a publisher's stream that are not delivered; none if it is not one of the `streams`."""
    if publisher not in streams:
        return Waiting()
    return Stream(PostgreSQLStore(connections[using]), publisher).measure(MAX_ROWS)


def list_waiting(using: str, publisher: str, now: datetime.datetime, limit: int) -> tuple[list[Failure], bool]:
    """Return a publisher's messages that wait for another attempt, the newest failure first.

    At most `limit` of those without a key are read, by due time, and as many that are the heads of their keys. Returns
    also whether there may be more.
    """
    messages = OutboxMessage.objects.using(using)
    later = messages.filter(available_at__gt=now, available_at__lt=HELD_BY_PAUSE)
    unkeyed = later.filter(WITHOUT_KEY, publisher=publisher).order_by("available_at", "id")
    ids = list(unkeyed.values_list("id", flat=True)[:limit])
    all_heads, complete = _list_heads(using, publisher, now)
    heads = [each.id for each in islice(_find_deferred(using, all_heads), limit)]
    fields = ("last_error_at" if name == "failed_at" else name for name in Failure._fields[:-1])
    waiting = later.exclude(last_error_at=None).values_list(*fields, ERROR_START)
    found = [Failure(*row) for part in batches([*ids, *heads]) for row in waiting.filter(pk__in=part)]
    found.sort(key=lambda each: (each.failed_at, each.id), reverse=True)
    return found, not complete or max(len(ids), len(heads)) == limit
