"""`status`: the one source of figures for every face of the monitoring."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from django.db import connections, router

from django_outbox.conf import get_settings
from django_outbox.models import OutboxMessage, OutboxMessageQuerySet, Pause
from django_outbox.monitoring import relays
from django_outbox.monitoring.consumers import read_consumers
from django_outbox.monitoring.failures import Failures, find_blocked_keys, read_failures
from django_outbox.monitoring.heads import read_heads
from django_outbox.monitoring.queues import read_queue
from django_outbox.monitoring.types import BlockedKey, PausedType, PublisherStatus, RelayStatus, Status
from django_outbox.monitoring.verdicts import judge
from django_outbox.stores import get_store
from django_outbox.stores.clock import read_clock
from django_outbox.stores.publishers import publishers_in_use

__all__ = ["status"]

CACHE_SECONDS = 2.0
"""Age up to which figures are returned again, so that several faces and impatient people cost one look."""

_WORST_FIRST = ("open", "half-open", "closed")

_cache: dict[tuple[Any, ...], tuple[float, Status]] = {}
_locks: dict[tuple[Any, ...], threading.Lock] = {}


def status(using: str | None = None, *, max_cache_age: float = CACHE_SECONDS) -> Status:
    """Return the figures of an outbox.

    Every query is bounded: counts end at 100,000 pending and 10,000 failed messages. Nothing is locked.

    Args:
        using: the database alias; by default the one that the router chooses for writing.
        max_cache_age: seconds for which the process may return the same figures again.

    Raises:
        DatabaseError: the database is unavailable, or the outbox's tables are missing.
    """
    using = using or router.db_for_write(OutboxMessage)
    # A test's database has the same alias as the one of the project.
    key = (using, connections[using].settings_dict["NAME"])
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
    reports = relays.read_relays(using, now)
    counts = relays.read_counts(using, now)
    pauses = list(Pause.objects.using(using).order_by("publisher", "type"))
    configured = list(get_settings().publishers)
    messages = OutboxMessageQuerySet(OutboxMessage, using=using)
    aliases = [*configured, *sorted({*publishers_in_use(messages), *failures.failed} - {*configured})]
    store = get_store(connections[using])
    publishers: list[PublisherStatus] = []
    blocked: list[BlockedKey] = []
    for alias in aliases:
        heads = read_heads(store, alias)
        blocked += heads.blocked
        queue = read_queue(using, alias, now, heads)
        processed, _, failed = relays.in_last_minute(counts, now, alias)
        figures = PublisherStatus(
            alias=alias,
            configured=alias in configured,
            due=queue.due,
            oldest_due=None if queue.oldest_due is None else max((now - queue.oldest_due).total_seconds(), 0.0),
            oldest_is_exact=queue.oldest_is_exact,
            retrying=queue.retrying,
            delayed=queue.delayed,
            failed=failures.count(failures.failed, alias),
            blocking=failures.count(failures.blocking, alias),
            processed_per_minute=processed,
            failed_per_minute=failed,
            processed_lately=relays.processed_lately(counts, now, alias),
        )
        figures = _add_reports(figures, [report for report in reports if report.alive and alias in report.publishers])
        figures = _add_pauses(figures, [pause for pause in pauses if pause.publisher == alias])
        if figures.configured or _has_messages(figures, failures):
            publishers.append(figures)
    blocked += find_blocked_keys(using, failures, blocked)
    blocked.sort(key=lambda key: (-key.waiting.number, key.id))
    result = Status(
        using=using,
        at=now,
        publishers=tuple(publishers),
        failures=failures.groups,
        failures_are_complete=failures.complete,
        blocked_keys=tuple(blocked),
        relays=reports,
        consumers=read_consumers(using, now),
        last_hour=relays.last_hour(counts, now),
        last_day=relays.last_day(counts, now),
    )
    return replace(result, verdicts=judge(result))


def _add_reports(figures: PublisherStatus, reports: Sequence[RelayStatus]) -> PublisherStatus:
    """Add what the living relays that serve a publisher report of it."""
    alias = figures.alias
    states = {report.publishers[alias] for report in reports}
    outages = sorted((report.outages[alias] for report in reports if alias in report.outages), key=lambda o: o.since)
    return replace(
        figures,
        relays=len(reports),
        breaker=next((state for state in _WORST_FIRST if state in states), ""),
        outage=outages[0].reason if outages else "",
        outage_since=outages[0].since if outages else None,
    )


def _add_pauses(figures: PublisherStatus, pauses: Sequence[Pause]) -> PublisherStatus:
    described = [
        PausedType(each.type, each.reason, each.paused_by, each.paused_at, each.resumed_at is not None)
        for each in pauses
    ]
    return replace(
        figures,
        paused=next((each for each in described if not each.type), None),
        paused_types=tuple(each for each in described if each.type),
    )


def _has_messages(figures: PublisherStatus, failures: Failures) -> bool:
    return bool(figures.due or figures.retrying or figures.delayed or failures.failed.get(figures.alias))
