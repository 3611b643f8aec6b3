"""What the relays report: who is alive, and how many messages were settled in each minute."""

import datetime
from collections import defaultdict

from django.db import connections
from django.db.models import Sum

from django_outbox.models import DeliveryCount, Heartbeat
from django_outbox.monitoring.types import Outage, PeriodCount, RelayStatus
from django_outbox.stores import get_store

MAX_RELAYS = 100
"""Maximum number of relays that are listed, the newest first."""

MISSED_REPORTS = 4
"""Number of intervals between two reports after which a relay that is silent counts as dead."""

ALIVE_SECONDS_OF_DRAINS = 180.0
"""Seconds since its last report after which a drain or a single batch, which reports when it ends, counts as gone.
Celery beat should start one every minute."""

MINUTE = datetime.timedelta(minutes=1)
QUARTER = datetime.timedelta(minutes=15)

Counts = dict[tuple[datetime.datetime, str], tuple[int, int, int]]
"""Processed, retried and failed messages, by minute and publisher."""


def read_relays(using: str, now: datetime.datetime) -> tuple[RelayStatus, ...]:
    """Return the latest report of each relay, the newest first."""
    interval = get_store(connections[using]).report_interval
    reports = Heartbeat.objects.using(using).filter(consumers__isnull=True).order_by("-seen_at")[:MAX_RELAYS]
    return tuple(_describe(each, now, find_silence(each, interval)) for each in reports)


def find_silence(report: Heartbeat, interval: float) -> float:
    """Return the seconds since its last report after which a process counts as gone.

    Args:
        report: its last report.
        interval: seconds between two reports.
    """
    return MISSED_REPORTS * interval if report.mode == "run" else ALIVE_SECONDS_OF_DRAINS


def is_alive(report: Heartbeat, now: datetime.datetime, silence: float) -> bool:
    """Return whether a process was seen lately and has not ended. Drains are alive only if they end often enough."""
    seconds = (now - report.seen_at).total_seconds()
    return seconds <= silence and (report.stopped_at is None or report.mode != "run")


def read_counts(using: str, now: datetime.datetime) -> Counts:
    """Return the counts of the last 24 hours."""
    rows = (
        DeliveryCount.objects.using(using)
        .filter(minute__gt=_floor(now, QUARTER) - datetime.timedelta(days=1), minute__lte=now)
        .values_list("minute", "publisher")
        .annotate(Sum("processed"), Sum("retried"), Sum("failed"))
    )
    return {(minute, publisher): (int(a), int(b), int(c)) for minute, publisher, a, b, c in rows}


def last_hour(counts: Counts, now: datetime.datetime) -> tuple[PeriodCount, ...]:
    """Return the counts of each of the last 60 minutes, the current one last."""
    return _add_up(counts, _floor(now, MINUTE), MINUTE, 60)


def last_day(counts: Counts, now: datetime.datetime) -> tuple[PeriodCount, ...]:
    """Return the counts of each quarter of an hour of the last 24 hours, the current one last."""
    return _add_up(counts, _floor(now, QUARTER), QUARTER, 96)


def in_last_minute(counts: Counts, now: datetime.datetime, publisher: str) -> tuple[int, int, int]:
    """Return a publisher's counts of the last full minute."""
    return counts.get((_floor(now, MINUTE) - MINUTE, publisher), (0, 0, 0))


def processed_lately(counts: Counts, now: datetime.datetime, publisher: str) -> bool:
    """Return whether any of a publisher's messages was delivered in the last full minute or since."""
    minute = _floor(now, MINUTE)
    return any(counts.get((start, publisher), (0, 0, 0))[0] for start in (minute - MINUTE, minute))


def _describe(report: Heartbeat, now: datetime.datetime, limit: float) -> RelayStatus:
    seconds = max((now - report.seen_at).total_seconds(), 0.0)
    return RelayStatus(
        name=report.relay,
        host=report.host,
        pid=report.pid,
        version=report.version,
        mode=report.mode,
        workers=report.workers,
        publishers={alias: str(state.get("state", "")) for alias, state in report.publishers.items()},
        started_at=report.started_at,
        seen_at=report.seen_at,
        stopped_at=report.stopped_at,
        seconds_since_seen=seconds,
        alive=is_alive(report, now, limit),
        processed=report.processed,
        retried=report.retried,
        failed=report.failed,
        outages={
            alias: Outage(str(state["reason"]), from_timestamp(state.get("since"), report.seen_at))
            for alias, state in report.publishers.items()
            if state.get("reason")
        },
    )


def from_timestamp(seconds: float | None, default: datetime.datetime) -> datetime.datetime:
    """Return a time, given its Unix time; the default if there is none."""
    return default if seconds is None else datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def _add_up(
    counts: Counts, last: datetime.datetime, period: datetime.timedelta, number: int
) -> tuple[PeriodCount, ...]:
    totals: defaultdict[datetime.datetime, list[int]] = defaultdict(lambda: [0, 0, 0])
    for (minute, _publisher), values in counts.items():
        total = totals[_floor(minute, period)]
        total[:] = [a + b for a, b in zip(total, values, strict=True)]
    starts = [last - period * back for back in range(number - 1, -1, -1)]
    return tuple(PeriodCount(start, *totals[start]) for start in starts)


def _floor(time: datetime.datetime, period: datetime.timedelta) -> datetime.datetime:
    midnight = time.replace(hour=0, minute=0, second=0, microsecond=0)
    return time - (time - midnight) % period
