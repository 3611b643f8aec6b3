"""Figures of an outbox, as `monitoring.status` returns them."""

import datetime
from dataclasses import replace
from typing import Any

from django_outbox.monitoring.figures import (
    BlockedKey,
    ConsumerStatus,
    Count,
    FailureGroup,
    Level,
    PausedType,
    PeriodCount,
    PublisherStatus,
    RelayStatus,
    Status,
    Verdict,
)
from django_outbox.monitoring.verdicts import judge

NOW = datetime.datetime(2026, 5, 31, 3, 0, tzinfo=datetime.timezone.utc)


def before(**duration: float) -> datetime.datetime:
    return NOW - datetime.timedelta(**duration)


def a_relay(**values: Any) -> RelayStatus:
    given: dict[str, Any] = {
        "name": "web-7f9c:7",
        "host": "web-7f9c",
        "pid": 7,
        "version": "0.2.0",
        "mode": "run",
        "workers": 2,
        "publishers": {"default": "closed"},
        "started_at": before(days=3),
        "seen_at": before(seconds=4),
        "stopped_at": None,
        "seconds_since_seen": 4.0,
        "state": "running",
        "processed": 1_200_000,
        "retried": 61,
        "failed": 1138,
    }
    return RelayStatus(**{**given, **values})


def a_good_day(using: str = "default") -> Status:
    """Five publishers that deliver, two relays, and a single failure within the last hour."""
    figures = {"default": (3, 512), "audit": (0, 210), "celery": (1, 90), "handlers": (0, 44), "webhooks": (0, 21)}
    publishers = tuple(
        PublisherStatus(
            alias,
            due=Count(due),
            oldest_due=0.4 if due else None,
            delayed=Count(12) if alias == "celery" else Count(),
            processed_per_minute=delivered,
            breaker="closed",
            relays=2,
        )
        for alias, (due, delivered) in figures.items()
    )
    served = dict.fromkeys(figures, "closed")
    day = Status(
        using,
        NOW,
        publishers=publishers,
        relays=(a_relay(publishers=served, failed=1), a_relay(host="web-9", publishers=served, failed=0)),
        last_hour=tuple(
            PeriodCount(before(minutes=60 - n), processed=780 + 7 * (n * n % 31), failed=n == 41) for n in range(60)
        ),
    )
    return replace(day, verdicts=judge(day))


def a_bad_night(using: str = "default") -> Status:
    """Everything that can be wrong at three in the morning, at once."""
    hour = [
        PeriodCount(before(minutes=60 - n), processed=0 if n > 12 else 1000 + 7 * n, failed=n % 5) for n in range(60)
    ]
    return Status(
        using,
        NOW,
        publishers=(
            PublisherStatus(
                "default",
                due=Count(100_000, more=True),
                oldest_due=2820.0,
                blocked=Count(57),
                retrying=Count(61),
                delayed=Count(12),
                failed=Count(1138),
                blocking=Count(12),
            ),
            PublisherStatus(
                "audit",
                processed_per_minute=1204,
                breaker="closed",
                relays=2,
                paused=PausedType("", "a new exchange", "ada", before(minutes=5)),
                blocked=Count(2710),
                held=Count(54),
                paused_types=(PausedType("order.paid", "", "bob", before(minutes=9), held=Count(54)),),
            ),
            PublisherStatus("old_alias", configured=False, due=Count(7), oldest_due=86_400.0 * 3),
        ),
        failures=(
            FailureGroup(
                "default",
                "rabbitmq.unroutable",
                "invoice.sent",
                Count(620),
                Count(0),
                before(hours=3),
                before(minutes=12),
                example="the exchange 'shop' has no queue for 'invoice.sent' (312 NO_ROUTE)",
            ),
            FailureGroup(
                "default",
                "shop.errors.Timeout",
                "order.paid",
                Count(518),
                Count(12),
                before(days=2),
                before(seconds=50),
                example="no answer of the payment service within 10 s",
            ),
        ),
        blocked_keys=(
            BlockedKey(
                "default",
                "order-5",
                17,
                "order.paid",
                True,
                "shop.errors.Timeout",
                before(hours=2),
                Count(41),
                "no answer",
            ),
        ),
        consumers=(
            ConsumerStatus("orders", "queue 'orders' at mq:5672", "reading", 2, before(seconds=3), received=12_345),
            ConsumerStatus("refunds", "queue 'refunds' at mq:5672", "not_read", 0, before(minutes=47)),
        ),
        relays=(
            a_relay(),
            a_relay(host="web-old", state="not seen", seen_at=before(minutes=47), seconds_since_seen=2820.0),
        ),
        last_hour=tuple(hour),
        verdicts=(
            Verdict(
                Level.CRITICAL,
                "not_delivering",
                "Not delivering for 47 min: 100,000+ due for 'default', no relay is running.",
                "default",
            ),
            Verdict(Level.WARNING, "failed", "1,138 messages failed."),
        ),
    )
