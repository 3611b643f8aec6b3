"""`status`: the figures of an outbox, from its messages and from the reports of its relays and inboxes."""

import datetime
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.db import connections, router
from django.db.models import Max, Sum

from django_outbox.conf import get_settings
from django_outbox.models import DeliveryCount, Heartbeat, OutboxMessage, OutboxMessageQuerySet, Pause, StreamPosition
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
    HandlerCall,
    OutageFigure,
    PausedType,
    PeriodCount,
    PublisherStatus,
    RelayStatus,
    Status,
    StreamStatus,
)
from django_outbox.monitoring.queues import (
    MAX_BLOCKED,
    Heads,
    count_held,
    database_key,
    find_blocked_keys,
    find_streams,
    read_failures,
    read_heads,
    read_queue,
    read_stream,
)
from django_outbox.monitoring.verdicts import judge
from django_outbox.service.heartbeats import REPORT_INTERVAL
from django_outbox.stores import get_store
from django_outbox.stores.clock import MINUTE, SLOT, floor, read_clock
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import Waiting, find_oldest_transaction
from django_outbox.stores.wal import LogQueries

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

QUARTER = datetime.timedelta(minutes=15)

Counts = dict[tuple[datetime.datetime, str], tuple[int, int, int]]
"""Processed, retried and failed messages, by the beginning of a period and publisher."""

_WORST_FIRST = ("crashed", "open", "half-open", "closed")

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
    """Read the figures of an outbox from its database."""
    now = read_clock(using)
    failures = read_failures(using)
    reports = _read_relays(using, now)
    counts = _read_counts(using, now)
    recent = _read_last_minute(using, now, reports)
    delivered_at = _read_last_deliveries(using, now, counts)
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
    not_all_heads: list[str] = []
    all_keys = True
    for alias in aliases:
        heads = read_heads(using, alias)
        blocked += heads.blocked_keys
        all_keys &= heads.complete and len(heads.blocked_keys) < MAX_BLOCKED
        if not heads.complete:
            not_all_heads.append(alias)
        streamed = read_stream(using, alias, positions)
        paused = [_describe_pause(pause, heads) for pause in pauses[alias]]
        figures = replace(
            read_queue(using, alias, now, heads, streamed),
            configured=alias in configured,
            failed=failures.failed[alias],
            blocking=failures.blocking[alias],
            processed_per_minute=recent.processed[alias],
            failed_per_minute=recent.failed[alias],
            delivered_at=delivered_at.get(alias),
            rate_limit=configured[alias].rate_limit if alias in configured else None,
            paused=next((each for each in paused if not each.type), None),
            paused_types=tuple(each for each in paused if each.type),
        )
        figures = _add_reports(figures, [report for report in reports if alias in report.publishers])
        counted = (figures.due, figures.blocked, figures.retrying, figures.delayed, figures.held, figures.failed.number)
        if figures.configured or any(counted):
            publishers.append(figures)
            if alias in positions:
                stream = _describe_stream(positions[alias], streamed, reports, now)
                if alias in from_log:
                    is_read, kept = LogQueries(PostgreSQLStore(store.connection), alias).measure_reader()
                    stream = replace(stream, log_is_read=is_read, log_kept=kept)
                streams.append(stream)
    blocked += find_blocked_keys(using, failures, blocked, not_all_heads)
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
        open_transaction=find_oldest_transaction(PostgreSQLStore(store.connection)) if streams else None,
        last_hour=_add_up(counts, floor(now, MINUTE), MINUTE, 60),
        last_day=_add_up(counts, floor(now, QUARTER), QUARTER, 96),
    )
    return replace(result, verdicts=judge(result))


def _describe_pause(pause: Pause, heads: Heads) -> PausedType:
    return PausedType(
        pause.type,
        pause.reason,
        pause.paused_by,
        pause.paused_at,
        resuming=pause.resumed_at is not None,
        held=count_held(pause),
        waiting=heads.behind_paused.get(pause.type, NONE),
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
    outages = sorted(
        (report.outages[alias] for report in counted if alias in report.outages), key=lambda o: (-o.crashes, o.since)
    )
    last = drains[0] if drains else None
    return replace(
        figures,
        relays=len(living),
        drains=len(drains),
        last_drain=last.seen_at if last else None,
        last_drain_outage=last.outages[alias].reason if last and alias in last.outages else "",
        breaker=next((state for state in _WORST_FIRST if state in states), ""),
        outage=outages[0].reason if outages else "",
        outage_since=outages[0].since if outages else None,
        crashes=outages[0].crashes if outages else 0,
        refused=next((report.refused[alias] for report in living if alias in report.refused), ""),
    )


def _describe_stream(
    position: StreamPosition, waiting: Waiting, reports: Sequence[RelayStatus], now: datetime.datetime
) -> StreamStatus:
    living = [report.name for report in reports if report.alive and position.publisher in report.publishers]
    states = {report.name: report.state for report in reports}
    return StreamStatus(
        publisher=position.publisher,
        relay=position.relay,
        relay_state=states.get(position.relay, NOT_SEEN) if position.relay else "",
        moved_at=position.moved_at if position.relay else None,
        standbys=tuple(name for name in living if name != position.relay),
        waiting=Count(waiting.number, waiting.more),
        oldest=max((now - waiting.oldest).total_seconds(), 0.0) if waiting.oldest else None,
    )


def _read_relays(using: str, now: datetime.datetime) -> tuple[RelayStatus, ...]:
    """Return the latest report of each relay, the newest first."""
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


def _read_counts(using: str, now: datetime.datetime) -> Counts:
    """Return the counts of each minute of the last 24 hours."""
    begin = floor(now, QUARTER) - datetime.timedelta(days=1)
    rows = (
        DeliveryCount.objects.using(using)
        .filter(seconds=MINUTE.seconds, start__gt=begin, start__lte=now)
        .values_list("start", "publisher")
        .annotate(Sum("processed"), Sum("retried"), Sum("failed"))
    )
    return {(start, publisher): (int(a), int(b), int(c)) for start, publisher, a, b, c in rows}


@dataclass(frozen=True, slots=True)
class _LastMinute:
    """The counts of each publisher in the last 60 seconds."""

    processed: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)


def _read_last_minute(using: str, now: datetime.datetime, reports: Sequence[RelayStatus]) -> _LastMinute:
    """Read the last six slots of each relay. A running one has not always reported in the current slot yet."""
    current = floor(now, SLOT)
    newest = {report.name: max(floor(report.seen_at, SLOT), current - SLOT) for report in reports if report.alive}
    rows = DeliveryCount.objects.using(using).filter(seconds=SLOT.seconds, start__gte=current - MINUTE, start__lte=now)
    found = _LastMinute()
    for relay, publisher, start, processed, failed in rows.values_list(
        "relay", "publisher", "start", "processed", "failed"
    ):
        if start > min(newest.get(relay, current), current) - MINUTE:
            found.processed[publisher] += processed
            found.failed[publisher] += failed
    return found


def _read_last_deliveries(using: str, now: datetime.datetime, counts: Counts) -> dict[str, datetime.datetime]:
    """Return the end of the last slot in which each publisher delivered, or of the last minute if no slot is kept."""
    minutes = sorted((start, alias) for (start, alias), (processed, *_) in counts.items() if processed)
    slots = DeliveryCount.objects.using(using).filter(seconds=SLOT.seconds, start__lte=now, processed__gt=0)
    return {
        **{alias: start + MINUTE for start, alias in minutes},
        **{alias: start + SLOT for alias, start in slots.values_list("publisher").annotate(Max("start"))},
    }


def _describe(report: Heartbeat, now: datetime.datetime) -> RelayStatus:
    state = _find_state(report, now)
    calls = {alias: each["call"] for alias, each in report.publishers.items() if each.get("call")}
    return RelayStatus(
        **{name: getattr(report, name) for name in REPORTED},
        name=report.relay,
        publishers={alias: str(state.get("state", "")) for alias, state in report.publishers.items()},
        seconds_since_seen=_seconds_since_seen(report, now),
        state=state,
        outages={
            alias: OutageFigure(
                str(state["reason"]),
                _from_timestamp(state.get("since"), report.seen_at),
                int(state.get("crashes", 0)),
            )
            for alias, state in report.publishers.items()
            if state.get("reason")
        },
        refused={alias: str(state["refused"]) for alias, state in report.publishers.items() if state.get("refused")},
        slow_handlers={
            alias: HandlerCall(call["handler"], call["message"], _from_timestamp(call["since"], report.seen_at))
            for alias, call in calls.items()
            if state == RUNNING
        },
    )


def _from_timestamp(seconds: float | None, default: datetime.datetime) -> datetime.datetime:
    return default if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _add_up(
    counts: Counts, last: datetime.datetime, period: datetime.timedelta, number: int
) -> tuple[PeriodCount, ...]:
    """Return the counts of each of the last periods, the current one last."""
    totals: defaultdict[datetime.datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (minute, _publisher), values in counts.items():
        total = totals[floor(minute, period)]
        total[:] = [a + b for a, b in zip(total, values, strict=True)]
    starts = [last - period * back for back in range(number - 1, -1, -1)]
    return tuple(PeriodCount(start, *totals[start]) for start in starts)


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
    outages = sorted(
        (-int(state.get("crashes", 0)), _from_timestamp(state.get("since"), report.seen_at), str(state["reason"]))
        for report, state in alive
        if state.get("reason")
    )
    counts = {
        name: sum(int(state.get(name, 0)) for _, state in alive)
        for name in ("received", "stored", "known", "invalid", "dropped", "rejected")
    }
    return ConsumerStatus(
        alias=alias,
        source=str(last.get("source", "")),
        state=next((state for state in CONSUMER_STATES if state in states), NOT_READ),
        inboxes=len(alive),
        outage=outages[0][2] if outages else "",
        outage_since=outages[0][1] if outages else None,
        crashes=-outages[0][0] if outages else 0,
        seen_at=newest.seen_at,
        stopped=newest.stopped_at is not None,
        **counts,
    )
