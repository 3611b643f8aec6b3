"""Figures of an outbox in which everything is wrong, with texts that must not leave the database."""

import datetime
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module
from typing import Any

from django_outbox.monitoring.figures import (
    BlockedKey,
    ConsumerStatus,
    Count,
    FailureGroup,
    Level,
    OutageFigure,
    PausedType,
    PublisherStatus,
    Status,
    Verdict,
)
from tests.support.admin.overview_figures import a_relay

reading: Any = import_module("django_outbox.monitoring.status")
"""The module that reads the figures; the package has a function of its name."""

Unreachable = Callable[[str], AbstractContextManager[None]]
"""The fixture `unreachable`."""

NOW = datetime.datetime(2030, 1, 1, 3, tzinfo=datetime.timezone.utc)

SECRET = "secret"
"""Part of every text that may name a customer, an operator, a machine or a password."""

TROUBLED = PublisherStatus(
    alias="default",
    due=Count(100_000, more=True),
    oldest_due=2820.5,
    blocked=Count(57),
    retrying=Count(61),
    delayed=Count(12),
    held=Count(54),
    failed=Count(1138),
    blocking=Count(7),
    processed_per_minute=1204,
    rate_limit=50.0,
    breaker="half-open",
    outage=OutageFigure(f"cannot connect to {SECRET}.example", NOW - datetime.timedelta(minutes=50)),
    relays=2,
    paused=PausedType("", f"{SECRET} reason", f"{SECRET} operator", NOW),
    paused_types=(PausedType("order.paid", f"{SECRET} reason", f"{SECRET} operator", NOW),),
)

FORGOTTEN = PublisherStatus(alias="old", configured=False, due=Count(7), oldest_due=90.0)

VERDICTS = (
    Verdict(Level.CRITICAL, "not_delivering", f"Not delivering: {SECRET}.", "default"),
    Verdict(Level.WARNING, "paused", f"Paused by {SECRET}.", "default"),
    Verdict(Level.WARNING, "paused", f"Messages of type {SECRET} are paused.", "default"),
    Verdict(Level.WARNING, "blocked", f"1 key is blocked, for example {SECRET}.", "default"),
    Verdict(Level.WARNING, "not_receiving", f"Consumer unavailable: {SECRET}.", consumer="orders"),
    Verdict(Level.WARNING, "failed", "1,138 messages failed."),
)


def troubled_status(using: str = "default", **changes: Any) -> Status:
    """Return figures in which everything is wrong; each field may be replaced."""
    figures = Status(
        using=using,
        at=NOW,
        publishers=(TROUBLED, FORGOTTEN),
        failures=(FailureGroup("default", f"{SECRET}.Error", f"{SECRET}.type", Count(3), Count(1), NOW, NOW),),
        blocked_keys=(
            BlockedKey("default", f"{SECRET}-customer", 1, "order.paid", True, "Timeout", NOW, Count(41)),
            BlockedKey("default", f"{SECRET}-customer-2", 2, "order.paid", False, "Timeout", NOW, Count(1)),
        ),
        consumers=(
            ConsumerStatus(
                alias="orders",
                source=f"queue {SECRET}",
                state="unavailable",
                inboxes=2,
                seen_at=NOW,
                received=1300,
                stored=1200,
                known=5,
                invalid=70,
                dropped=20,
                rejected=10,
                outage=OutageFigure(f"{SECRET} refused", NOW),
            ),
        ),
        relays=(
            a_relay(
                name=f"{SECRET}-host:7",
                host=f"{SECRET}-host",
                version="1",
                publishers={"default": "open"},
                seconds_since_seen=1.0,
            ),
        ),
        verdicts=VERDICTS,
    )
    return replace(figures, **changes)
