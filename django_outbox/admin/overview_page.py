"""The content of the overview: the figures of one database and their chart, as the template shows them."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_outbox.admin.display import number
from django_outbox.monitoring.figures import (
    Count,
    FailureGroup,
    Level,
    PeriodCount,
    PublisherStatus,
    Status,
    Verdict,
)
from django_outbox.monitoring.verdicts import describe_stream
from django_outbox.utils.text import duration

DOCS = "https://django-transactional-outbox.readthedocs.io/en/latest/"

LABELS: dict[Level, Any] = {
    Level.OK: gettext_lazy("OK"),
    Level.WARNING: gettext_lazy("Warning"),
    Level.CRITICAL: gettext_lazy("Critical"),
}

STATES: dict[str, Any] = {
    "crashed": gettext_lazy("crashed"),
    "not_delivering": gettext_lazy("not delivering"),
    "unavailable": gettext_lazy("unavailable"),
    "cut_off": gettext_lazy("partly unavailable"),
    "refused": gettext_lazy("refused by the database"),
    "unknown_publisher": gettext_lazy("not in the settings"),
    "behind": gettext_lazy("behind"),
}
"""The state of a publisher about which there is a verdict."""

MAX_RELAYS = 20
"""Maximum number of running relays that are shown; the others are folded."""

MAX_GONE = 3
"""Maximum number of relays that are shown although they do not run, the last ones; the others are folded."""

MAX_GROUPS = 20
"""Maximum number of causes that a page shows."""

MIN_BAR = 2.0
"""Height of the smallest bar, in percent of the chart: a single failure is visible in front of thousands delivered."""


def describe(status: Status, waiting: tuple[Sequence[FailureGroup], bool]) -> dict[str, Any]:
    """Return the context of the template, in addition to the figures."""
    groups, is_complete = waiting
    living = [relay for relay in status.relays if relay.alive]
    gone = [relay for relay in status.relays if not relay.alive]
    streams = {each.publisher: describe_stream(each, status) for each in status.streams}
    return {
        "status": status,
        "verdicts": _verdicts(status),
        "totals": _totals(status),
        "publishers": [
            (each, *_state(each, status), _oldest(each.oldest_due, each.oldest_is_exact), streams.get(each.alias, ""))
            for each in status.publishers
        ],
        "chart": draw(status.last_hour),
        "groups": status.failures[:MAX_GROUPS],
        "waiting_groups": groups[:MAX_GROUPS],
        "several_publishers": len({group.publisher for group in [*status.failures, *groups]}) > 1,
        "waiting_not_shown": len(groups) > MAX_GROUPS,
        "waiting_is_complete": is_complete,
        "relays": [*living[:MAX_RELAYS], *gone[:MAX_GONE]],
        "folded": [*living[MAX_RELAYS:], *gone[MAX_GONE:]],
    }


def _verdicts(status: Status) -> list[tuple[Verdict, Any, str, str]]:
    """Return the verdicts with their label, their remedy, and their reason unless an earlier one has the same."""
    shown = [each for each in status.verdicts if each.level or each is status.verdict]
    reasons = [each.reason for each in shown]
    return [
        (each, LABELS[each.level], remedy(each), "" if each.reason in reasons[:index] else each.reason)
        for index, each in enumerate(shown)
    ]


def remedy(verdict: Verdict) -> str:
    """Return the address of the page about a verdict. Each address is tested against the documentation."""
    if verdict.level is Level.OK:
        return f"{DOCS}how-to/monitoring.html#overview"
    return f"{DOCS}how-to/troubleshooting.html#{verdict.code.replace('_', '-')}"


def address(site: str, name: str, **parameters: str) -> str:
    """Return the address of one of the outbox's pages in an admin site; blank parameters are left out."""
    url = reverse(f"admin:django_outbox_{name}", current_app=site)
    # A key may have a lone surrogate.
    query = urlencode({name: value for name, value in parameters.items() if value}, errors="replace")
    return f"{url}?{query}" if query else url


def _state(publisher: PublisherStatus, status: Status) -> tuple[Any, str]:
    """Return what a publisher is doing, and the level by which that is coloured; a blank one has no colour."""
    if publisher.paused:
        return _("paused"), "warning"
    for verdict in status.verdicts:
        if verdict.publisher == publisher.alias and verdict.code in STATES:
            return STATES[verdict.code], verdict.level.name.lower()
    if publisher.processed_per_minute:
        return _("delivering"), "ok"
    return (_("idle"), "") if publisher.relays or publisher.drains else (_("no relay"), "warning")


def _totals(status: Status) -> list[tuple[str, str, str]]:
    """Return the names and the values of four figures for all publishers, and the course of two over the last hour."""
    publishers, hour = status.publishers, status.last_hour
    ages = [each.oldest_due for each in publishers if each.oldest_due is not None]
    is_exact = all(each.oldest_is_exact for each in publishers)
    failed = number(sum((each.failed for each in publishers), Count()))
    rate = number(sum(each.processed_per_minute for each in publishers))
    return [
        (_("due"), number(sum((each.due for each in publishers), Count())), ""),
        (_("oldest"), _oldest(max(ages, default=None), is_exact), ""),
        (_("failed"), failed, _course([each.failed for each in hour])),
        (_("delivered / min"), rate, _course([each.processed for each in hour])),
    ]


def _course(values: Sequence[int]) -> str:
    """Return the points of a line through the values, one unit apart, from the bottom at 100 to the top at 0."""
    most = max(values, default=0) or 1
    return " ".join(f"{x},{100 - 100 * value / most:.0f}" for x, value in enumerate(values))


def _oldest(seconds: float | None, is_exact: bool) -> str:
    text = "-" if seconds is None else duration(round(seconds))
    return text if is_exact else _("%(age)s or more") % {"age": text}


def draw(periods: Sequence[PeriodCount]) -> dict[str, Any]:
    """Return the chart: its periods with the heights of their two bars on one scale, in percent, and its figures."""
    most = max((period.processed for period in periods), default=0)
    most_failed = max((period.failed for period in periods), default=0)
    top = max(most, most_failed, 1)
    return {
        "bars": [(each, _height(each.processed, top), _height(each.failed, top)) for each in periods],
        "delivered": number(sum(period.processed for period in periods)),
        "failed": number(sum(period.failed for period in periods)),
        "most": number(most),
        "most_failed": number(most_failed),
    }


def _height(count: int, top: int) -> float:
    return max(100 * count / top, MIN_BAR) if count else 0.0
