"""The content of the overview: the figures of one database, as the template shows them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.models import LogEntry
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from django_outbox.admin.display import age, breakable, exact, number, with_age
from django_outbox.admin.operations import with_count
from django_outbox.admin.overview_chart import draw, draw_sparkline
from django_outbox.admin.overview_groups import GROUP_OPERATIONS, WaitingGroup
from django_outbox.models import Status as State
from django_outbox.monitoring.figures import (
    MAX_AGE,
    BlockedKey,
    ConsumerStatus,
    Count,
    FailureGroup,
    Finding,
    Level,
    PausedType,
    PublisherStatus,
    RelayStatus,
    Status,
    StreamStatus,
)
from django_outbox.text import duration

DOCS = "https://django-transactional-outbox.readthedocs.io/en/latest/"

REMEDIES = {
    "not_delivering": f"{DOCS}how-to/troubleshooting.html#not-delivering",
    "unavailable": f"{DOCS}how-to/troubleshooting.html#relay-logs-an-outage",
    "unknown_publisher": f"{DOCS}how-to/troubleshooting.html#unknown-publisher",
    "not_read": f"{DOCS}how-to/troubleshooting.html#not-read",
    "not_receiving": f"{DOCS}how-to/troubleshooting.html#not-receiving",
    "behind": f"{DOCS}how-to/troubleshooting.html#behind",
    "backlog": f"{DOCS}how-to/troubleshooting.html#backlog",
    "paused": f"{DOCS}how-to/failed-messages.html#pause",
    "blocked": f"{DOCS}how-to/troubleshooting.html#blocked",
    "failed": f"{DOCS}how-to/failed-messages.html",
    "delivering": f"{DOCS}how-to/monitoring.html#overview",
    "idle": f"{DOCS}how-to/monitoring.html#overview",
}
"""The page that each verdict links to. Every address is tested against the documentation."""

LEVELS = {Level.OK: "ok", Level.WARNING: "warning", Level.CRITICAL: "critical"}
"""The names of the levels in CSS classes."""

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
    """The addresses that the page links to.

    Args:
        own: returns the address of one of the overview's views: its name, and the parameters of the query.
        messages: returns the address of the list of messages with these filters; blank if the list shows another
            database.
        message: returns the address of a message by its id; blank if the list shows another database.
    """

    own: Callable[..., str]
    messages: Callable[..., str]
    message: Callable[[int], str]
    allowed: frozenset[str]


def describe(
    status: Status, waiting: tuple[Sequence[WaitingGroup], bool], period: str, entries: Sequence[LogEntry], links: Links
) -> dict[str, Any]:
    """Return the context of the template."""
    relays = sorted(status.relays, key=lambda relay: not relay.alive)
    return {
        "refreshed_at": exact(status.at),
        "verdicts": [_verdict(each) for each in status.verdicts if each.level or each is status.verdict],
        "totals": _totals(status.publishers),
        "sparkline": draw_sparkline(status.last_hour),
        "publishers": [_publisher(each, status, links) for each in status.publishers],
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
        "keys": [_key(each, status, links) for each in status.blocked_keys[:MAX_KEYS]],
        "more_keys": _more_keys(status),
        "relays": [_relay(each, status) for each in relays[:MAX_RELAYS]],
        "more_relays": len(relays) > MAX_RELAYS,
        "consumers": [_consumer(each, status) for each in status.consumers],
        "operations": [_entry(each, status) for each in entries],
    }


def describe_causes(groups: Sequence[FailureGroup], status: Status, links: Links) -> list[dict[str, Any]]:
    """Return the rows of a table of causes."""
    return [_failed_group(each, status, links) for each in groups]


def query(**parameters: str) -> str:
    """Return parameters as the query of an address, without blank ones."""
    return urlencode({name: value for name, value in parameters.items() if value})


def _totals(publishers: Sequence[PublisherStatus]) -> list[tuple[str, str]]:
    """Return the names and values of the figures that matter most, over all publishers."""
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
        "level": LEVELS[finding.level],
        "label": LABELS[finding.level],
        "sentence": finding.sentence,
        "remedy": REMEDIES.get(finding.code, ""),
    }


def _publisher(publisher: PublisherStatus, status: Status, links: Links) -> dict[str, Any]:
    breakers = {"closed": _("closed"), "open": _("open"), "half-open": _("half-open")}
    oldest = "-"
    if publisher.oldest_due is not None:
        oldest = duration(round(publisher.oldest_due))
    return {
        "alias": publisher.alias,
        "configured": publisher.configured,
        "due": number(publisher.due),
        "oldest": oldest if publisher.oldest_is_exact else _("%(age)s or more") % {"age": oldest},
        "blocked": number(publisher.blocked),
        "retrying": number(publisher.retrying),
        "delayed": number(publisher.delayed),
        "failed": number(publisher.failed),
        "blocking": number(publisher.blocking) if publisher.blocking.number else "",
        "rate": number(publisher.processed_per_minute),
        "breaker": breakers.get(publisher.breaker, "-"),
        "outage": publisher.outage,
        "outage_since": with_age(publisher.outage_since, now=status.at) if publisher.outage_since else "",
        "relays": number(publisher.relays),
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
        several = stream.positions > 1
        ended = not (stream.owned or several)
        text = _("stream of %(relay)s, which has ended") if ended else _("stream of %(relay)s")
        moved = _("moved %(age)s") % {"age": age(stream.moved_at, status.at)}
        parts = [text % {"relay": stream.relay}, moved]
        if several:
            numbers = {"owned": stream.owned_positions, "positions": stream.positions}
            parts.append(_("%(owned)s of %(positions)s positions have a relay") % numbers)
    parts.append(with_count(_STANDBYS, len(stream.standbys)))
    oldest = status.open_transaction
    if oldest is not None and (oldest.seconds or 0.0) > MAX_AGE:
        text = _("transaction %(number)s (process %(pid)s) has been open for %(age)s: its messages wait for its commit")
        if oldest.pid is None:
            text = _("transaction %(name)r has been prepared for %(age)s: its messages wait for its commit")
        values = {"number": oldest.number, "pid": oldest.pid, "name": oldest.name}
        parts.append(text % {**values, "age": duration(round(oldest.seconds or 0.0))})
    return " · ".join(parts)


def _pause_link(publisher: PublisherStatus, links: Links) -> str:
    if publisher.paused or not publisher.configured or "pause" not in links.allowed:
        return ""
    return links.own("pause", publisher=publisher.alias)


def _pauses(publisher: PublisherStatus, status: Status, links: Links) -> Iterator[dict[str, Any]]:
    for pause in filter(None, [publisher.paused, *publisher.paused_types]):
        yield {
            "what": _pause_sentence(pause),
            "by": pause.paused_by,
            "since": with_age(pause.paused_at, now=status.at),
            "reason": pause.reason,
            "type": pause.type,
            "resume": links.own("resume", publisher=publisher.alias, type=pause.type)
            if "pause" in links.allowed
            else "",
        }


def _pause_sentence(pause: PausedType) -> str:
    if not pause.type:
        return _("paused")
    if pause.resuming:
        return _("%(type)s: not all held messages are due again") % {"type": pause.type}
    return _("%(type)s paused") % {"type": pause.type}


def _failed_group(group: FailureGroup, status: Status, links: Links) -> dict[str, Any]:
    cause = _cause(group)
    return {
        **_group(group, status, links, State.FAILED),
        "example": group.example,
        "blocking": number(group.blocking),
        "first": with_age(group.first, _("%(age)s or earlier") if group.count.more else "%(age)s", status.at),
        "look": links.messages(state=State.FAILED.value, **cause),
    }


def _cause(group: FailureGroup | WaitingGroup) -> dict[str, str]:
    fingerprint = group.fingerprint if isinstance(group, FailureGroup) else ""
    names = {"publisher": group.publisher, "error_class": group.error_class, "type": group.type}
    return {**names, "fingerprint": fingerprint}


def _group(group: FailureGroup | WaitingGroup, status: Status, links: Links, state: State) -> dict[str, Any]:
    cause = _cause(group)
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
        "pause": _pause_type_link(group, status, links),
    }


def _pause_type_link(group: FailureGroup | WaitingGroup, status: Status, links: Links) -> str:
    """Return where to pause the type of a group; blank if it is paused, or may not be."""
    publisher = next((each for each in status.publishers if each.alias == group.publisher), None)
    if publisher is None or not publisher.configured or "pause" not in links.allowed:
        return ""
    if any(pause.type == group.type and not pause.resuming for pause in publisher.paused_types):
        return ""
    return links.own("pause", publisher=group.publisher, type=group.type)


def _key(key: BlockedKey, status: Status, links: Links) -> dict[str, Any]:
    return {
        "key": key.key,
        "publisher": key.publisher,
        "type": key.type,
        "state": _("failed") if key.failed else _("waits for its retry"),
        "error_class": key.error_class,
        "since": with_age(key.since, now=status.at),
        "waiting": number(key.waiting),
        "look": links.message(key.id),
    }


def _more_keys(status: Status) -> str:
    more = Count(max(len(status.blocked_keys) - MAX_KEYS, 0), more=not status.blocked_keys_are_complete)
    return _("and %(count)s more") % {"count": more} if more.number else ""


def _relay(relay: RelayStatus, status: Status) -> dict[str, Any]:
    if relay.alive:
        state = _("alive")
    elif relay.stopped_at is not None:
        state = _("stopped")
    else:
        state = _("not seen")
    return {
        "name": relay.name,
        "host": relay.host,
        "pid": relay.pid,
        "version": relay.version,
        "mode": relay.mode,
        "workers": relay.workers,
        "publishers": ", ".join(sorted(relay.publishers)),
        "alive": relay.alive,
        "state": state,
        "started": with_age(relay.started_at, now=status.at),
        "seen": with_age(relay.seen_at, now=status.at),
        "processed": number(relay.processed),
        "failed": number(relay.failed),
    }


def _consumer(consumer: ConsumerStatus, status: Status) -> dict[str, Any]:
    states = {
        "reading": _("reading"),
        "paused": _("paused because of the backlog"),
        "unavailable": _("broker unavailable"),
        "not_read": _("not read"),
    }
    return {
        "alias": consumer.alias,
        "source": consumer.source,
        "state": states.get(consumer.state, consumer.state),
        "outage": consumer.outage,
        "outage_since": with_age(consumer.outage_since, now=status.at) if consumer.outage_since else "",
        "alive": consumer.inboxes > 0,
        "seen": with_age(consumer.seen_at, now=status.at),
        **{
            name: number(getattr(consumer, name))
            for name in ("inboxes", "received", "stored", "invalid", "dropped", "rejected")
        },
    }


def _entry(entry: LogEntry, status: Status) -> dict[str, Any]:
    return {
        "user": entry.user.get_username(),
        "subject": entry.object_repr,
        "text": entry.get_change_message(),
        "when": with_age(entry.action_time, now=status.at),
    }
