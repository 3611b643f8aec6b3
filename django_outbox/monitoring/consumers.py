"""The reports of the inboxes: which consumers are read, and what they received in the last minute."""

import datetime
from collections import defaultdict
from typing import Any

from django.db import connections

from django_outbox.conf import get_settings
from django_outbox.models import Heartbeat
from django_outbox.monitoring.relays import MAX_RELAYS, find_silence, from_timestamp, is_alive
from django_outbox.monitoring.types import CONSUMER_STATES, NOT_READ, ConsumerStatus
from django_outbox.stores import get_store


def read_consumers(using: str, now: datetime.datetime) -> tuple[ConsumerStatus, ...]:
    """Return the figures of each consumer that an inbox has reported lately, by alias.

    A consumer that is no longer in the settings is left out once its last inbox has ended in order.
    """
    reports = Heartbeat.objects.using(using).filter(consumers__isnull=False).order_by("-seen_at")[:MAX_RELAYS]
    interval = get_store(connections[using]).report_interval
    by_alias: defaultdict[str, list[tuple[Heartbeat, dict[str, Any], bool]]] = defaultdict(list)
    for report in reports:
        alive = is_alive(report, now, find_silence(report, interval))
        for alias, state in (report.consumers or {}).items():
            by_alias[alias].append((report, state, alive))
    found = (_add_up(alias, states) for alias, states in sorted(by_alias.items()))
    configured = get_settings().consumers
    return tuple(each for each in found if each.inboxes or not each.stopped or each.alias in configured)


def _add_up(alias: str, reports: list[tuple[Heartbeat, dict[str, Any], bool]]) -> ConsumerStatus:
    """Return the figures of one consumer, given the reports of all inboxes that read or have read it, newest first."""
    newest, last, _ = reports[0]
    alive = [(report, state) for report, state, is_alive in reports if is_alive]
    states = {str(state.get("state", "")) for _, state in alive}
    outages = sorted(
        (from_timestamp(state.get("since"), report.seen_at), str(state["reason"]))
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
        outage=outages[0][1] if outages else "",
        outage_since=outages[0][0] if outages else None,
        seen_at=newest.seen_at,
        stopped=newest.stopped_at is not None,
        **counts,
    )
