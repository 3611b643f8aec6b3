"""`status`: the figures of an outbox, from its messages and from the reports of its relays and inboxes."""

import datetime
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import connections, router
from django.db.models import Max, Sum

from django_outbox.conf import get_settings
from django_outbox.db.routing import database_key
from django_outbox.models import DeliveryCount, OutboxMessage, OutboxMessageQuerySet, Pause, StreamPosition
from django_outbox.monitoring.failures import read_failures
from django_outbox.monitoring.figures import (
    NOT_SEEN,
    BlockedKey,
    Count,
    PausedType,
    PeriodCount,
    PublisherStatus,
    RelayStatus,
    Status,
    StreamStatus,
)
from django_outbox.monitoring.queues import MAX_BLOCKED, count_held, find_streams, read_heads, read_queue, read_stream
from django_outbox.monitoring.reports import add_reports, read_consumers, read_relays
from django_outbox.monitoring.verdicts import judge
from django_outbox.stores import get_store
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Waiting
from django_outbox.stores.wal import LogQueries

CACHE_SECONDS = 2.0
"""Age up to which figures are shared, so that callers within two seconds cause one reading."""

_cache: dict[tuple[Any, ...], tuple[float, Status]] = {}
_locks: dict[tuple[Any, ...], threading.Lock] = {}


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
    reports = read_relays(using, now)
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
        figures = add_reports(figures, [report for report in reports if alias in report.publishers])
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
        consumers=read_consumers(using, now),
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
