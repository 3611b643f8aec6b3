"""`status`: the figures of an outbox, from its messages and from the reports of its relays and inboxes.

The head of a partition is its oldest undelivered message, for which all others of the partition wait. Every query is
bounded and reads an index.
"""

import datetime
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice, starmap
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from django.db import connections, router
from django.db.models import Count as CountRows
from django.db.models import F, Max, Min, Q, Sum
from django.db.models.functions import Left

from django_outbox.conf import get_settings
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import (
    HELD_BY_PAUSE,
    DeliveryCount,
    Heartbeat,
    OutboxMessage,
    OutboxMessageQuerySet,
    Pause,
    StreamPosition,
)
from django_outbox.models.message import WITH_KEY, WITHOUT_KEY, batches
from django_outbox.monitoring.figures import (
    CONSUMER_STATES,
    NONE,
    NOT_READ,
    NOT_SEEN,
    RUNNING,
    STOPPED,
    BlockedKey,
    ConsumerStatus,
    Count,
    FailureGroup,
    OutageFigure,
    PausedType,
    PeriodCount,
    PublisherStatus,
    RelayStatus,
    RunningCall,
    Status,
    StreamStatus,
)
from django_outbox.monitoring.verdicts import judge
from django_outbox.service.heartbeats import REPORT_INTERVAL
from django_outbox.stores import Store, get_store
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Stream, Waiting
from django_outbox.stores.wal import LogQueries
from django_outbox.utils.text import fingerprint, first_line

CACHE_SECONDS = 2.0
"""Age up to which figures are shared, so that callers within two seconds cause one reading."""

MAX_RELAYS = 100
"""Maximum number of relays that are listed, the newest first."""

SILENCE = 2 * REPORT_INTERVAL
"""Seconds since its last report after which a process has missed two reports and counts as not seen."""

SILENCE_OF_TENANTS = 4 * REPORT_INTERVAL
"""The same for the relay of a tenant's schema, which reports to many of them, one after another."""

ALIVE_SECONDS_OF_DRAINS = 180.0
"""Seconds since its last report after which a drain or a single batch, which reports when it ends, counts as gone.
Celery beat should start one every minute."""

REPORTED = (
    *("host", "pid", "version", "mode", "workers", "started_at", "seen_at", "stopped_at"),
    *("processed", "retried", "failed"),
)
"""The figures of a relay that are columns of its report."""

_WORST_FIRST = ("crashed", "open", "half-open", "closed")

_cache: dict[tuple[Any, ...], tuple[float, Status]] = {}
_locks: dict[tuple[Any, ...], threading.Lock] = {}

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

MAX_FAILURES = 10_000
"""Maximum number of failed messages that are read and grouped by their error, the newest first."""

TALLY_SECONDS = 60.0
"""Age up to which a tally is used: 100,000 messages take PostgreSQL 0.5 s and MariaDB 1.4 s on a busy machine."""

MAX_GROUPED_LENGTH = 200
"""Maximum number of characters of an error that are read to group messages."""

MAX_FINGERPRINTS = 10
"""Maximum number of fingerprints of one publisher, error class and type; beyond it, they are one group."""

ERROR_START = Left("error", MAX_GROUPED_LENGTH)
"""The part of an error that its fingerprint is made from."""

SET_ASIDE = Q(attempts=0, available_at__lte=F("last_error_at") + datetime.timedelta(minutes=1))
"""A message that waits because its destination accepts none. It is not to blame, and counts as due. If it waits longer,
a handler or a server has asked for that."""

LATELY_SET_ASIDE = SET_ASIDE & Q(history__isnull=True)
"""The same for a message that is due because its wait has ended, and not because an operator requeued it."""

Tally = dict[tuple[str, str, str], tuple[Count, Count]]
"""The numbers of failed messages and of those that block their key, by publisher, error class and type."""

_tallies: dict[tuple[str, ...], tuple[float, Tally]] = {}


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


class Failure(NamedTuple):
    """A message that failed, or waits for another attempt, with `ERROR_START` of its error."""

    publisher: str
    error_class: str
    type: str
    failed_at: datetime.datetime
    blocks_key: bool
    partition: int
    id: int
    error: str

    @property
    def cause(self) -> tuple[str, str, str]:
        return self.publisher, self.error_class, self.type


class Deferred(NamedTuple):
    """A head that waits after an attempt, with `ERROR_START` of its error."""

    id: int
    attempts: int
    first_error_at: datetime.datetime | None
    error: str


@dataclass(frozen=True, slots=True)
class Failures:
    """The newest failed messages by cause, and the numbers of all that failed or block their key, by publisher."""

    groups: tuple[FailureGroup, ...]
    complete: bool
    failed: Mapping[str, Count]
    blocking: Mapping[str, Count]


def status(using: str | None = None, *, max_cache_age: float = CACHE_SECONDS) -> Status:
    """Return the figures of an outbox.

    Every query is bounded: counts end at 100,000 messages. If more than 10,000 failed, they are counted
    once a minute. Nothing is locked.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        max_cache_age: seconds for which the process may return the same figures again.

    Raises:
        DatabaseError: the database is unavailable, or the outbox's tables are missing.
    """
    using = using or router.db_for_write(OutboxMessage)
    key = database_key(using)
    # One for each database: one that hangs does not hold up the figures of others. `setdefault` is atomic.
    with _locks.setdefault(key, threading.Lock()):
        read_at, known = _cache.get(key, (0.0, None))
        if known is None or time.monotonic() - read_at > max_cache_age:
            known = read_status(using)
            _cache[key] = (time.monotonic(), known)
    return known


def read_status(using: str) -> Status:
    now = read_clock(using)
    failures = read_failures(using)
    reports = _read_relays(using, now)
    processed = _read_last_minute(using, now, reports)
    delivered_at = _read_last_deliveries(using, now)
    pauses = defaultdict[str, list[Pause]](list)
    for pause in Pause.objects.using(using).order_by("publisher", "type"):
        pauses[pause.publisher].append(pause)
    configured, from_log = get_settings().publishers, get_settings().from_log
    messages = OutboxMessageQuerySet(OutboxMessage, using=using)
    store = get_store(connections[using])
    positions = find_streams(store)
    found = {*messages.publishers_in_use(), *positions, *failures.failed}
    aliases = [*configured, *sorted(found - {*configured})]
    publishers: list[PublisherStatus] = []
    streams: list[StreamStatus] = []
    blocked: list[BlockedKey] = []
    all_keys = True
    for alias in aliases:
        heads = read_heads(using, alias)
        blocked += heads.blocked_keys
        all_keys &= heads.complete and len(heads.blocked_keys) < MAX_BLOCKED
        streamed = read_stream(using, alias, positions)
        paused = [_describe_pause(pause) for pause in pauses[alias]]
        figures = replace(
            read_queue(using, alias, now, heads, streamed),
            configured=alias in configured,
            failed=failures.failed[alias],
            blocking=failures.blocking[alias],
            processed_per_minute=processed[alias],
            delivered_at=delivered_at.get(alias),
            rate_limit=configured[alias].rate_limit if alias in configured else None,
            paused=next((each for each in paused if not each.type), None),
            paused_types=tuple(each for each in paused if each.type),
        )
        figures = _add_reports(figures, [report for report in reports if alias in report.publishers])
        if figures.configured or any(count.number for count in figures.counts):
            publishers.append(figures)
            if alias in positions:
                stream = _describe_stream(positions[alias], streamed, reports, now)
                if alias in from_log:
                    is_read, kept = LogQueries(PostgreSQLStore(store.connection), alias).measure_reader()
                    stream = replace(stream, log_is_read=is_read, log_kept=kept)
                streams.append(stream)
    blocked.sort(key=lambda key: (-key.waiting.number, key.id))
    result = Status(
        using=using,
        at=now,
        publishers=tuple(publishers),
        failures=failures.groups,
        failures_are_complete=failures.complete,
        blocked_keys=tuple(blocked),
        blocked_keys_are_complete=all_keys,
        relays=reports,
        consumers=_read_consumers(using, now),
        streams=tuple(streams),
        last_hour=_read_last_hour(using, now),
    )
    return replace(result, verdicts=judge(result))


def _describe_pause(pause: Pause) -> PausedType:
    return PausedType(
        pause.type,
        pause.reason,
        pause.paused_by,
        pause.paused_at,
        resuming=pause.resumed_at is not None,
        held=count_held(pause),
    )


def _add_reports(figures: PublisherStatus, reports: Sequence[RelayStatus]) -> PublisherStatus:
    """Add the reports of the living relays that serve a publisher, and of the drains that ended lately.

    An outage is one of the publisher only if no relay can reach the broker.
    """
    alias = figures.alias
    living = [report for report in reports if report.alive]
    drains = [
        report for report in reports if report.mode != "run" and report.seconds_since_seen <= ALIVE_SECONDS_OF_DRAINS
    ]
    crashed = [report for report in living if alias in report.outages and report.outages[alias].crashes]
    reaching = [report for report in living if alias not in report.outages]
    counted = crashed or reaching or living
    states = {report.publishers[alias] for report in counted}
    last = drains[0] if drains else None
    return replace(
        figures,
        relays=len(living),
        drains=len(drains),
        last_drain=last.seen_at if last else None,
        last_drain_outage=last.outages[alias].reason if last and alias in last.outages else "",
        breaker=next((state for state in _WORST_FIRST if state in states), ""),
        outage=_find_worst(report.outages[alias] for report in counted if alias in report.outages),
        refused=next((report.refused[alias] for report in living if alias in report.refused), ""),
        call=max(
            (report.calls[alias] for report in living if alias in report.calls),
            key=attrgetter("seconds"),
            default=None,
        ),
    )


def _describe_stream(
    position: StreamPosition, waiting: Waiting, reports: Sequence[RelayStatus], now: datetime.datetime
) -> StreamStatus:
    states = {report.name: report.state for report in reports}
    return StreamStatus(
        publisher=position.publisher,
        relay=position.relay,
        relay_state=states.get(position.relay, NOT_SEEN) if position.relay else "",
        moved_at=position.moved_at if position.relay else None,
        waiting=Count(waiting.number, waiting.more),
        oldest=max((now - waiting.oldest).total_seconds(), 0.0) if waiting.oldest else None,
    )


def _read_relays(using: str, now: datetime.datetime) -> tuple[RelayStatus, ...]:
    reports = Heartbeat.objects.using(using).filter(consumers__isnull=True).order_by("-seen_at")[:MAX_RELAYS]
    return tuple(_describe(each, now) for each in reports)


def _find_state(report: Heartbeat, now: datetime.datetime) -> str:
    if report.stopped_at is not None or report.mode != "run":
        return STOPPED
    is_of_tenant = getattr(connections[report._state.db or ""], "schema_name", "")
    silence = SILENCE_OF_TENANTS if is_of_tenant else SILENCE
    return RUNNING if _seconds_since_seen(report, now) <= silence else NOT_SEEN


def _is_alive(report: Heartbeat, now: datetime.datetime) -> bool:
    """Return whether an inbox runs. Those that end when they are idle are alive only if they end often enough."""
    if report.mode != "run":
        return _seconds_since_seen(report, now) <= ALIVE_SECONDS_OF_DRAINS
    return _find_state(report, now) == RUNNING


def _seconds_since_seen(report: Heartbeat, now: datetime.datetime) -> float:
    # If the clock went back, a report in the future is old, too: a process that lives reports again.
    return abs((now - report.seen_at).total_seconds())


def _read_last_hour(using: str, now: datetime.datetime) -> tuple[PeriodCount, ...]:
    """Return the counts of each of the last 60 minutes, the current one last."""
    starts = [floor(now, MINUTE) - MINUTE * back for back in range(59, -1, -1)]
    rows = (
        DeliveryCount.objects.using(using)
        .filter(seconds=MINUTE.seconds, start__gte=starts[0], start__lte=now)
        .values_list("start")
        .annotate(Sum("processed"), Sum("retried"), Sum("failed"))
    )
    counts = {start: map(int, values) for start, *values in rows}
    return tuple(PeriodCount(start, *counts.get(start, ())) for start in starts)


def _read_last_minute(using: str, now: datetime.datetime, reports: Sequence[RelayStatus]) -> Counter[str]:
    """Return how many messages were delivered, by publisher, in the last six slots of each relay.

    A running relay has not always reported in the current slot yet.
    """
    current = floor(now, SLOT)
    newest = {report.name: max(floor(report.seen_at, SLOT), current - SLOT) for report in reports if report.alive}
    rows = DeliveryCount.objects.using(using).filter(seconds=SLOT.seconds, start__gte=current - MINUTE, start__lte=now)
    total = Counter[str]()
    for relay, publisher, start, processed in rows.values_list("relay", "publisher", "start", "processed"):
        if start > min(newest.get(relay, current), current) - MINUTE:
            total[publisher] += processed
    return total


def _read_last_deliveries(using: str, now: datetime.datetime) -> dict[str, datetime.datetime]:
    """Return the end of the last slot in which each publisher delivered, or the begin of the last minute.

    Slots are kept for a few minutes only. The time since the delivery does not go back when they are deleted.
    """
    counts = DeliveryCount.objects.using(using).filter(
        start__gt=now - datetime.timedelta(days=1), start__lte=now, processed__gt=0
    )
    return {
        alias: start + after
        for period, after in ((MINUTE, datetime.timedelta(0)), (SLOT, SLOT))
        for alias, start in counts.filter(seconds=period.seconds).values_list("publisher").annotate(Max("start"))
    }


def _describe(report: Heartbeat, now: datetime.datetime) -> RelayStatus:
    state = _find_state(report, now)
    return RelayStatus(
        **{name: getattr(report, name) for name in REPORTED},
        name=report.relay,
        publishers={alias: str(state.get("state", "")) for alias, state in report.publishers.items()},
        seconds_since_seen=_seconds_since_seen(report, now),
        state=state,
        outages={
            alias: _describe_outage(state, report) for alias, state in report.publishers.items() if state.get("reason")
        },
        refused={alias: str(state["refused"]) for alias, state in report.publishers.items() if state.get("refused")},
        calls={alias: call for alias, state in report.publishers.items() if (call := _read_call(state.get("call")))},
    )


def _read_call(call: Any) -> RunningCall | None:
    match call:
        case {"handler": str(handler), "id": int(id), "seconds": int() | float() as seconds}:
            return RunningCall(handler, id, seconds)
    # None, or of another version.
    return None


def _describe_outage(state: Mapping[str, Any], report: Heartbeat) -> OutageFigure:
    since = _from_timestamp(state.get("since"), report.seen_at)
    return OutageFigure(str(state["reason"]), since, int(state.get("crashes", 0)))


def _find_worst(outages: Iterable[OutageFigure]) -> OutageFigure | None:
    """Return the outage with the most crashes, or else the one that began first."""
    return min(outages, key=lambda each: (-each.crashes, each.since), default=None)


def _from_timestamp(seconds: float | None, default: datetime.datetime) -> datetime.datetime:
    return default if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _read_consumers(using: str, now: datetime.datetime) -> tuple[ConsumerStatus, ...]:
    """Return the figures of each consumer that an inbox has reported lately, by alias.

    A consumer that is no longer in the settings is left out once its last inbox has ended in order.
    """
    reports = Heartbeat.objects.using(using).filter(consumers__isnull=False).order_by("-seen_at")[:MAX_RELAYS]
    by_alias: defaultdict[str, list[tuple[Heartbeat, dict[str, Any], bool]]] = defaultdict(list)
    for report in reports:
        alive = _is_alive(report, now)
        for alias, state in (report.consumers or {}).items():
            by_alias[alias].append((report, state, alive))
    found = (_add_up_reports(alias, states) for alias, states in sorted(by_alias.items()))
    configured = get_settings().consumers
    return tuple(each for each in found if each.inboxes or not each.stopped or each.alias in configured)


def _add_up_reports(alias: str, reports: list[tuple[Heartbeat, dict[str, Any], bool]]) -> ConsumerStatus:
    """Return the figures of one consumer, given the reports of all inboxes that read or have read it, newest first."""
    newest, last, _ = reports[0]
    alive = [(report, state) for report, state, is_alive in reports if is_alive]
    states = {str(state.get("state", "")) for _, state in alive}
    counts = {
        name: sum(int(state.get(name, 0)) for _, state in alive)
        for name in ("received", "stored", "known", "invalid", "dropped", "rejected")
    }
    return ConsumerStatus(
        alias=alias,
        source=str(last.get("source", "")),
        state=next((state for state in CONSUMER_STATES if state in states), NOT_READ),
        inboxes=len(alive),
        outage=_find_worst(_describe_outage(state, report) for report, state in alive if state.get("reason")),
        seen_at=newest.seen_at,
        stopped=newest.stopped_at is not None,
        **counts,
    )


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


def read_queues(using: str, publishers: Iterable[str]) -> list[PublisherStatus]:
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


def list_failures(using: str, limit: int) -> tuple[list[Failure], bool]:
    """Return the newest failed messages, at most `limit`, and whether there are more."""
    newest = OutboxMessage.objects.using(using).failed().order_by("-failed_at", "-id")
    found = [Failure(*row) for row in newest.values_list(*Failure._fields[:-1], ERROR_START)[: limit + 1]]
    return found[:limit], len(found) > limit


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
    return Failures(tuple(group_failures(found, tally if more else None)), not more, failed, blocking)


def group_failures(failures: Sequence[Failure], tally: Tally | None = None) -> list[FailureGroup]:
    """Return failures by cause, the largest group first.

    Args:
        failures: the newest ones first.
        tally: the numbers of all failed messages, if these are only the newest ones.
    """
    by_cause = _group_by_cause(failures)
    errors = Counter((publisher, error_class, type) for publisher, error_class, type, _ in by_cause)
    groups = []
    for (publisher, error_class, type, name), members in by_cause.items():
        more = tally is not None
        counted = Count(len(members), more), Count(sum(each.blocks_key for each in members), more)
        # Errors are not compared in the database: several of one class and type are counted among the newest only.
        if tally and errors[publisher, error_class, type] == 1:
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
    return sorted(
        groups,
        key=lambda group: (-group.count.number, group.publisher, group.error_class, group.type, group.fingerprint),
    )


def _group_by_cause(failures: Sequence[Failure]) -> dict[tuple[str, str, str, str], list[Failure]]:
    """Return the failures by cause; too many fingerprints of one publisher, error class and type are one group."""
    named = [(each.cause, fingerprint(each.error)) for each in failures]
    fingerprints = Counter(cause for cause, _ in set(named))
    groups: defaultdict[tuple[str, str, str, str], list[Failure]] = defaultdict(list)
    for (cause, name), each in zip(named, failures, strict=True):
        key = (*cause, name if fingerprints[cause] <= MAX_FINGERPRINTS else "")
        groups[key].append(each)
    return groups
