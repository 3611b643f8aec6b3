"""What relays and inboxes have reported of themselves."""

import datetime
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

from django.db import connections

from django_outbox.conf import get_settings
from django_outbox.models import Heartbeat
from django_outbox.monitoring.figures import (
    CONSUMER_STATES,
    NOT_READ,
    NOT_SEEN,
    RUNNING,
    STOPPED,
    ConsumerStatus,
    OutageFigure,
    PublisherStatus,
    RelayStatus,
    RunningCall,
)
from django_outbox.service.heartbeats import REPORT_INTERVAL

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


def read_relays(using: str, now: datetime.datetime) -> tuple[RelayStatus, ...]:
    reports = Heartbeat.objects.using(using).filter(consumers__isnull=True).order_by("-seen_at")[:MAX_RELAYS]
    return tuple(_describe(each, now) for each in reports)


def read_consumers(using: str, now: datetime.datetime) -> tuple[ConsumerStatus, ...]:
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


def add_reports(figures: PublisherStatus, reports: Sequence[RelayStatus]) -> PublisherStatus:
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
