"""The content of the overview: the figures of one database and their chart, as the template shows them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.models import LogEntry
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_outbox.admin.display import age, breakable, clock, exact, number, with_age
from django_outbox.admin.operations import with_count
from django_outbox.admin.overview_groups import GROUP_OPERATIONS
from django_outbox.models import Status as State
from django_outbox.monitoring.figures import (
    MAX_AGE,
    Count,
    FailureGroup,
    Finding,
    Level,
    PausedType,
    PeriodCount,
    PublisherStatus,
    Status,
    StreamStatus,
)
from django_outbox.text import duration

DOCS = "https://django-transactional-outbox.readthedocs.io/en/latest/"

REMEDIES = {
    "not_delivering": f"{DOCS}how-to/troubleshooting.html#not-delivering",
    "crashed": f"{DOCS}how-to/troubleshooting.html#crashed",
    "unavailable": f"{DOCS}how-to/troubleshooting.html#relay-logs-an-outage",
    "unknown_publisher": f"{DOCS}how-to/troubleshooting.html#unknown-publisher",
    "not_read": f"{DOCS}how-to/troubleshooting.html#not-read",
    "not_receiving": f"{DOCS}how-to/troubleshooting.html#not-receiving",
    "behind": f"{DOCS}how-to/troubleshooting.html#behind",
    "backlog": f"{DOCS}how-to/troubleshooting.html#backlog",
    "paused": f"{DOCS}how-to/failed-messages.html#pause",
    "log_kept": f"{DOCS}how-to/troubleshooting.html#log-kept",
    "log_not_read": f"{DOCS}how-to/troubleshooting.html#log-not-read",
    "blocked": f"{DOCS}how-to/troubleshooting.html#blocked",
    "failed": f"{DOCS}how-to/failed-messages.html",
    "delivering": f"{DOCS}how-to/monitoring.html#overview",
    "idle": f"{DOCS}how-to/monitoring.html#overview",
}
"""The page that each verdict links to. Every address is tested against the documentation."""

LABELS: dict[Level, Any] = {
    Level.OK: gettext_lazy("OK"),
    Level.WARNING: gettext_lazy("Warning"),
    Level.CRITICAL: gettext_lazy("Critical"),
}

_STANDBYS = ngettext_lazy("%(count)s relay stands by", "%(count)s relays stand by", "number")
_DRAINS = ngettext_lazy("and %(count)s drain", "and %(count)s drains", "number")

MAX_GROUPS = 20
"""Maximum number of causes that are shown."""

MAX_KEYS = 10
"""Maximum number of blocked keys that are shown."""

MAX_RELAYS = 20
"""Maximum number of relays that are shown."""


@dataclass(frozen=True, slots=True)
class Links:
    """The addresses of the overview's views, and of messages; these are blank if the list shows another database."""

    own: Callable[..., str]
    messages: Callable[..., str]
    message: Callable[[int], str]
    allowed: frozenset[str]


def describe(
    status: Status, waiting: tuple[Sequence[FailureGroup], bool], period: str, entries: Sequence[LogEntry], links: Links
) -> dict[str, Any]:
    """Return the context of the template."""
    relays = sorted(status.relays, key=lambda relay: not relay.alive)
    more_keys = Count(max(len(status.blocked_keys) - MAX_KEYS, 0), more=not status.blocked_keys_are_complete)
    since = partial(with_age, now=status.at)
    return {
        "refreshed_at": exact(status.at),
        "verdicts": [_verdict(each) for each in status.verdicts if each.level or each is status.verdict],
        "totals": _totals(status.publishers),
        "sparkline": draw_sparkline(status.last_hour),
        "publishers": [(each, _publisher(each, status, links)) for each in status.publishers],
        "chart": draw(status.last_day if period == "day" else status.last_hour),
        "periods": [
            (name, label, links.own("overview", period=name), name == period)
            for name, label in (("hour", _("last hour")), ("day", _("24 h")))
        ],
        "groups": describe_causes(status.failures[:MAX_GROUPS], status, links),
        "more_groups": len(status.failures) > MAX_GROUPS,
        "waiting_groups": [_group(each, status, links, State.PENDING) for each in waiting[0][:MAX_GROUPS]],
        "waiting_is_complete": waiting[1] and len(waiting[0]) <= MAX_GROUPS,
        "failures_are_complete": status.failures_are_complete,
        "keys": [(key, since(key.since), links.message(key.id)) for key in status.blocked_keys[:MAX_KEYS]],
        "more_keys": _("and %(count)s more") % {"count": more_keys} if more_keys.number else "",
        "relays": [
            (relay, ", ".join(sorted(relay.publishers)), since(relay.started_at), since(relay.seen_at))
            for relay in relays[:MAX_RELAYS]
        ],
        "more_relays": len(relays) > MAX_RELAYS,
        "consumers": [(each, since(each.seen_at), since(each.outage_since)) for each in status.consumers],
        "operations": [(entry, since(entry.action_time)) for entry in entries],
    }


def describe_causes(groups: Sequence[FailureGroup], status: Status, links: Links) -> list[dict[str, Any]]:
    return [_failed_group(each, status, links) for each in groups]


def query(**parameters: str) -> str:
    """Return parameters as the query of an address, without blank ones."""
    return urlencode({name: value for name, value in parameters.items() if value})


def _totals(publishers: Sequence[PublisherStatus]) -> list[tuple[str, str]]:
    ages = [each.oldest_due for each in publishers if each.oldest_due is not None]
    oldest = duration(round(max(ages))) if ages else "-"
    if not all(each.oldest_is_exact for each in publishers):
        oldest = _("%(age)s or more") % {"age": oldest}
    return [
        (_("due"), number(sum((each.due for each in publishers), Count()))),
        (_("oldest"), oldest),
        (_("failed"), number(sum((each.failed for each in publishers), Count()))),
        (_("delivered / min"), number(sum(each.processed_per_minute for each in publishers))),
    ]


def _verdict(finding: Finding) -> dict[str, Any]:
    return {
        "level": finding.level.name.lower(),
        "label": LABELS[finding.level],
        "sentence": finding.sentence,
        "remedy": REMEDIES.get(finding.code, ""),
    }


def _publisher(publisher: PublisherStatus, status: Status, links: Links) -> dict[str, Any]:
    breakers = {"closed": _("closed"), "open": _("open"), "half-open": _("half-open"), "crashed": _("crashed")}
    oldest = "-" if publisher.oldest_due is None else duration(round(publisher.oldest_due))
    return {
        "oldest": oldest if publisher.oldest_is_exact else _("%(age)s or more") % {"age": oldest},
        "breaker": breakers.get(publisher.breaker, "-"),
        "outage_since": with_age(publisher.outage_since, now=status.at),
        "drains": with_count(_DRAINS, publisher.drains) if publisher.drains else "",
        "stream": next((_stream(each, status) for each in status.streams if each.publisher == publisher.alias), ""),
        "pauses": list(_pauses(publisher, status, links)),
        "pause": _pause_link(publisher, links),
    }


def _stream(stream: StreamStatus, status: Status) -> str:
    """Return who moves the stream and who stands by, and the transaction that has been open for long, if any."""
    if stream.moved_at is None:
        parts = [_("no relay has read the stream yet")]
    else:
        text = _("stream of %(relay)s") if stream.owned else _("stream of %(relay)s, which has ended")
        moved = _("moved %(age)s") % {"age": age(stream.moved_at, status.at)}
        parts = [text % {"relay": stream.relay}, moved]
    parts.append(with_count(_STANDBYS, len(stream.standbys)))
    if stream.log_is_read is not None:
        text = _("PostgreSQL's log is read") if stream.log_is_read else _("PostgreSQL's log is not read")
        kept = _("%(kept)s of it kept") % {"kept": filesizeformat(stream.log_kept)} if stream.log_kept else ""
        parts.append(", ".join(filter(None, [text, kept])))
    oldest = status.open_transaction
    if oldest is not None and (oldest.seconds or 0.0) > MAX_AGE:
        text = _("transaction %(number)s (process %(pid)s) has been open for %(age)s: its messages wait for its commit")
        if oldest.pid is None:
            text = _("transaction %(name)r has been prepared for %(age)s: its messages wait for its commit")
        values = {"number": oldest.number, "pid": oldest.pid, "name": oldest.name}
        parts.append(text % {**values, "age": duration(round(oldest.seconds or 0.0))})
    return " · ".join(parts)


def _pause_link(publisher: PublisherStatus | None, links: Links, type: str = "") -> str:
    """Return where to pause a publisher, or a type; blank if it is paused, or may not be."""
    if publisher is None or not publisher.configured or "pause" not in links.allowed:
        return ""
    paused = any(pause.type == type and not pause.resuming for pause in publisher.paused_types)
    return "" if (paused if type else publisher.paused) else links.own("pause", publisher=publisher.alias, type=type)


def _pauses(publisher: PublisherStatus, status: Status, links: Links) -> Iterator[tuple[Any, ...]]:
    for pause in filter(None, [publisher.paused, *publisher.paused_types]):
        may_resume = "pause" in links.allowed
        resume = links.own("resume", publisher=publisher.alias, type=pause.type) if may_resume else ""
        yield pause, _pause_sentence(pause), with_age(pause.paused_at, now=status.at), resume


def _pause_sentence(pause: PausedType) -> str:
    if not pause.type:
        return _("paused")
    if pause.resuming:
        return _("%(type)s: not all held messages are due again") % {"type": pause.type}
    return _("%(type)s paused") % {"type": pause.type}


def _failed_group(group: FailureGroup, status: Status, links: Links) -> dict[str, Any]:
    return {
        **_group(group, status, links, State.FAILED),
        "example": group.example,
        "blocking": number(group.blocking),
        "first": with_age(group.first, _("%(age)s or earlier") if group.count.more else "%(age)s", status.at),
        "look": links.messages(state=State.FAILED.value, **_cause(group)),
    }


def _cause(group: FailureGroup) -> dict[str, str]:
    return {name: getattr(group, name) for name in ("publisher", "error_class", "type", "fingerprint")}


def _group(group: FailureGroup, status: Status, links: Links, state: State) -> dict[str, Any]:
    cause = _cause(group)
    publisher = next((each for each in status.publishers if each.alias == group.publisher), None)
    return {
        "name": " ".join(["failed" if state is State.FAILED else "waiting", *filter(None, cause.values())]),
        "publisher": group.publisher,
        "error_class": group.error_class or "-",
        "type": group.type,
        "shown_error_class": breakable(group.error_class or "-"),
        "shown_type": breakable(group.type),
        "count": number(group.count),
        "first": with_age(group.first, now=status.at),
        "last": with_age(group.last, now=status.at),
        "operations": [
            (operation.name, operation.label, links.own(operation.name, **cause))
            for operation in GROUP_OPERATIONS
            if operation.state is state and operation.name in links.allowed
        ],
        "pause": _pause_link(publisher, links, group.type),
    }


# The template has the same positions.
WIDTH = 720
LEFT = 8
BASE = 126
UP = 110
"""Height of the part for delivered messages."""
DOWN = 34
"""Height of the part for failed messages, which has its own scale: a few of them must be visible below thousands."""
MIN_BAR = 2.0
"""Height of the smallest bar: a single message is visible."""


def draw(periods: Sequence[PeriodCount]) -> dict[str, Any] | None:
    """Return the chart. Positions are in the units of the SVG, as text with a decimal point in every language."""
    if not periods:
        return None
    most = max(period.processed for period in periods)
    most_failed = max(period.failed for period in periods)
    step = (WIDTH - 2 * LEFT) / len(periods)
    bars = []
    for index, period in enumerate(periods):
        up = _height(period.processed, most, UP)
        values = {"time": exact(period.start), "delivered": number(period.processed), "failed": number(period.failed)}
        bars.append(
            {
                **values,
                "title": _("%(time)s: %(delivered)s delivered, %(failed)s failed") % values,
                "time": clock(period.start),
                "x": f"{LEFT + index * step:.2f}",
                "width": f"{step * 0.8:.2f}",
                "up_y": f"{BASE - up:.2f}",
                "up_height": f"{up:.2f}",
                "down_height": f"{_height(period.failed, most_failed, DOWN):.2f}",
            }
        )
    totals = {
        "delivered": number(sum(period.processed for period in periods)),
        "failed": number(sum(period.failed for period in periods)),
    }
    return {
        "bars": bars,
        "summary": _("%(delivered)s delivered, %(failed)s failed") % totals,
        "top": _("delivered, at most %(number)s") % {"number": number(most)},
        "bottom": _("failed, at most %(number)s") % {"number": number(most_failed)},
        "first": bars[0]["time"],
        "last": bars[-1]["time"],
    }


def _height(count: int, most: int, room: int) -> float:
    return max(count / most * room, MIN_BAR) if count else 0.0


def draw_sparkline(periods: Sequence[PeriodCount]) -> str:
    """Return the delivered messages of each period as the points of a line, 100 wide and 20 high."""
    most = max((period.processed for period in periods), default=0)
    step = 100 / max(len(periods) - 1, 1)
    return " ".join(
        f"{index * step:.1f},{19 - 18 * period.processed / (most or 1):.1f}" for index, period in enumerate(periods)
    )
