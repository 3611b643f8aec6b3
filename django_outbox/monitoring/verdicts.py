"""Judge the figures of an outbox: what is wrong, how urgent it is, and a sentence for each finding and stream."""

import datetime
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_outbox.monitoring.figures import (
    NONE,
    NOT_SEEN,
    ConsumerStatus,
    Count,
    Level,
    PausedType,
    PublisherStatus,
    RelayStatus,
    Status,
    StreamStatus,
    Verdict,
)
from django_outbox.service.heartbeats import REPORT_INTERVAL
from django_outbox.utils.text import duration

CODES = (
    "crashed",
    "not_delivering",
    "unavailable",
    "not_reporting",
    "cut_off",
    "refused",
    "unknown_publisher",
    "not_read",
    "not_receiving",
    "behind",
    "backlog",
    "failed",
    "blocked",
    "paused",
    "log_kept",
    "log_not_read",
    "delivering",
    "idle",
)
"""The codes of verdicts, the most important first: of two verdicts of one level, the earlier one comes first."""

OUTAGES = ("crashed", "not_delivering", "unavailable", "not_reporting", "not_receiving")
"""The codes of verdicts because of which the outbox is not well, even if they are not critical yet."""

MAX_AGE = 60.0
"""Seconds that a due message may wait before the outbox counts as not delivering."""

MANY_CRASHES = 3
"""Number of crashes of a worker or a reader in a row from which on they are critical."""

MAX_LOG_KEPT = 2**30
"""Bytes of PostgreSQL's log that a relay may hold back: as many as PostgreSQL keeps for itself by default
(`max_wal_size`)."""

PATIENCE = 20.0
"""Seconds without a delivery after which relays that have due messages do not count as delivering."""

AT_LIMIT = 0.8
"""Share of its limit from which on a publisher counts as delivering at its limit."""

MAX_SILENCE = 600.0
"""Seconds after its last report until the loss of a relay is no longer a warning while others serve its publishers."""

LOG_PATIENCE = 60.0
"""Seconds after its start in which a relay may search the table instead of reading the log."""

MAX_NAMES = 3
"""Maximum number of relays, and of publishers, that a sentence names."""


def judge(status: Status, max_age: float = MAX_AGE) -> tuple[Verdict, ...]:
    """Return the verdicts, the most urgent first; at least one.

    Args:
        max_age: seconds that a due message may wait, and that an outage may last, before it is critical.
    """
    verdicts = [verdict for publisher in status.publishers for verdict in _judge_publisher(publisher, status, max_age)]
    verdicts += [verdict for stream in status.streams for verdict in _judge_stream(stream, status)]
    verdicts += _judge_silence(status)
    verdicts += _judge_failures(status)
    verdicts += [verdict for consumer in status.consumers for verdict in _judge_consumer(consumer, status, max_age)]
    if not any(verdict.level == Level.CRITICAL or verdict.code in OUTAGES for verdict in verdicts):
        verdicts.append(_all_is_well(status))
    verdicts.sort(key=lambda verdict: (-verdict.level, CODES.index(verdict.code)))
    return tuple(verdicts)


def _judge_publisher(publisher: PublisherStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    if publisher.configured:
        yield from _judge_pauses(publisher)
        if not publisher.paused:
            yield from _judge_deliveries(publisher, status, max_age)
    elif waiting := publisher.due + publisher.delayed + publisher.held + publisher.retrying:
        text = ngettext_lazy(
            "%(count)s message is for %(publisher)r, which is not in the settings.",
            "%(count)s messages are for %(publisher)r, which is not in the settings.",
            "number",
        )
        level = Level.CRITICAL if _is_late(publisher, max_age) else Level.WARNING
        yield _about(publisher, level, "unknown_publisher", text, **_counted(waiting))


def _about(publisher: PublisherStatus, level: Level, code: str, text: Any, **values: Any) -> Verdict:
    values |= {"publisher": publisher.alias, "due": publisher.due}
    return Verdict(level, code, text, publisher.alias, values=values)


def _is_late(publisher: PublisherStatus, max_age: float) -> bool:
    return (publisher.oldest_due or 0.0) > max_age


def _judge_pauses(publisher: PublisherStatus) -> Iterator[Verdict]:
    if publisher.paused:
        text = _("Publisher %(publisher)r is paused%(details)s: %(due)s due.")
        yield _about(publisher, Level.WARNING, "paused", text, details=_details(publisher.paused))
        return
    for each in publisher.paused_types:
        text = _("Messages of type %(type)r of the publisher %(publisher)r are paused%(details)s: %(held)s held.")
        if each.resuming:
            text = _(
                "Type %(type)r of the publisher %(publisher)r was resumed, but %(held)s of its messages are still "
                "held. Resume it again."
            )
        values = {"type": each.type, "details": _details(each), "held": each.held}
        yield _about(publisher, Level.WARNING, "paused", text, **values)


def _judge_deliveries(publisher: PublisherStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    """Judge whether due messages are delivered; at most one verdict, about the cause that explains the others."""
    late, outage = _is_late(publisher, max_age), publisher.outage
    if outage and outage.crashes:
        text = ngettext_lazy(
            "A worker of the publisher %(publisher)r crashed %(count)s time%(reason)s: %(due)s due.",
            "A worker of the publisher %(publisher)r crashed %(count)s times in a row%(reason)s: %(due)s due.",
            "number",
        )
        level = Level.CRITICAL if outage.crashes >= MANY_CRASHES else Level.WARNING
        yield _about(publisher, level, "crashed", text, reason=outage.reason, **_counted(Count(outage.crashes)))
    elif outage:
        lasted = _seconds_since(outage.since, status)
        text = _("Publisher %(publisher)r has been unavailable for %(lasted)s%(reason)s: %(due)s due.")
        # A half-open breaker without late messages only waits for a message with which to try the broker.
        level = Level.CRITICAL if late or (publisher.breaker == "open" and lasted > max_age) else Level.WARNING
        yield _about(publisher, level, "unavailable", text, lasted=duration(round(lasted)), reason=outage.reason)
    elif publisher.refused:
        text = _("The database refuses to change messages of the publisher %(publisher)r%(reason)s: %(due)s due.")
        level = Level.CRITICAL if late else Level.WARNING
        yield _about(publisher, level, "refused", text, reason=publisher.refused)
    elif _does_not_deliver(publisher, status):
        lasted = _seconds_without_delivery(publisher, status)
        has_none = not (publisher.relays or publisher.drains)
        text, values = _explain_standstill(publisher, status, lasted)
        level = Level.CRITICAL if late and (has_none or lasted > max_age) else Level.WARNING
        yield _about(publisher, level, "not_delivering", text, **values)
    elif late:
        text, values = _explain_delay(publisher, status)
        yield _about(publisher, Level.WARNING, "behind", text, **values)
    elif cut_off := [each for each in _living(publisher, status) if _is_cut_off(publisher, each)]:
        text = _("%(count)s of %(relays)s relays (%(names)s) cannot deliver for publisher %(publisher)r%(reason)s.")
        values = {
            "count": Count(len(cut_off)),
            "relays": Count(publisher.relays),
            "names": _list([each.name for each in cut_off]),
            "reason": cut_off[0].outages[publisher.alias].reason,
        }
        yield _about(publisher, Level.WARNING, "cut_off", text, **values)


def _is_cut_off(publisher: PublisherStatus, relay: RelayStatus) -> bool:
    # A half-open breaker only waits for a message with which to try the broker.
    return publisher.alias in relay.outages and relay.publishers[publisher.alias] == "open"


def _judge_silence(status: Status) -> Iterator[Verdict]:
    """Judge relays that have missed two reports although others may deliver, once for all with the same publishers."""
    judged = {
        each.alias: each
        for each in status.publishers
        if each.configured and (each.paused or each.relays or not _does_not_deliver(each, status))
    }
    lost = {alias: _find_lost(publisher, status) for alias, publisher in judged.items()}
    grouped: defaultdict[tuple[str, ...], list[RelayStatus]] = defaultdict(list)
    for relay in status.relays:
        if aliases := tuple(alias for alias in judged if relay in lost[alias]):
            grouped[aliases].append(relay)
    for aliases, relays in grouped.items():
        text = ngettext_lazy(
            "%(count)s relay of %(relays)s (%(names)s) has not reported for %(silence)s: %(due)s due for "
            "%(publishers)s.",
            "%(count)s relays of %(relays)s (%(names)s) have not reported for up to %(silence)s: %(due)s due for "
            "%(publishers)s.",
            "number",
        )
        known = [
            each
            for each in status.relays
            if any(each in lost[alias] or (each.alive and alias in each.publishers) for alias in aliases)
        ]
        values = {
            "relays": Count(len(known)),
            "silence": duration(round(max(each.seconds_since_seen for each in relays))),
            "due": sum((judged[alias].due for alias in aliases), NONE),
            "publishers": _list([repr(alias) for alias in aliases]),
            "names": _list([each.name for each in relays]),
            **_counted(Count(len(relays))),
        }
        publisher = aliases[0] if len(aliases) == 1 else ""
        yield Verdict(Level.WARNING, "not_reporting", text, publisher, values=values)


def _find_lost(publisher: PublisherStatus, status: Status) -> list[RelayStatus]:
    """Return a publisher's relays that have missed two reports and were not replaced, the newest report first.

    Each relay that was started since then replaces one, even if it has ended by now. After `MAX_SILENCE`, other relays
    or drains probably suffice.
    """
    relays = [each for each in status.relays if publisher.alias in each.publishers]
    started = [each.started_at for each in relays if each.mode == "run"]
    drains = (each for each in relays if each.mode != "run")
    is_served = publisher.relays or any(each.seconds_since_seen <= MAX_SILENCE for each in drains)
    lost = []
    for relay in relays:
        if relay.state != NOT_SEEN:
            continue
        if successor := next((at for at in started if at > relay.seen_at), None):
            started.remove(successor)
        elif relay.seconds_since_seen <= MAX_SILENCE or not is_served:
            lost.append(relay)
    return lost


def _living(publisher: PublisherStatus, status: Status) -> list[RelayStatus]:
    return [each for each in status.relays if each.alive and publisher.alias in each.publishers]


def _does_not_deliver(publisher: PublisherStatus, status: Status) -> bool:
    """Return whether messages are due, and the relays are gone, or have not delivered any for some time."""
    # Relays of tenants report less often, and nothing is known since the latest report.
    reported = min((each.seconds_since_seen for each in _living(publisher, status)), default=0.0)
    patience = MAX_AGE if publisher.drains and not publisher.relays else PATIENCE + max(reported - REPORT_INTERVAL, 0.0)
    if publisher.rate_limit:
        # At a low limit, two deliveries are far apart.
        patience = max(patience, 2 / publisher.rate_limit)
    were_there = publisher.processed_per_minute or _find_lost(publisher, status)
    are_gone = were_there and not (publisher.relays or publisher.drains)
    has_failed = publisher.last_drain_outage and not publisher.relays
    return bool(publisher.due and (are_gone or has_failed)) or _seconds_without_delivery(publisher, status) > patience


def _seconds_without_delivery(publisher: PublisherStatus, status: Status) -> float:
    oldest = publisher.oldest_due or 0.0
    return min(oldest, max(_seconds_since(publisher.delivered_at, status), 0.0)) if publisher.delivered_at else oldest


def _explain_standstill(publisher: PublisherStatus, status: Status, lasted: float) -> tuple[Any, dict[str, Any]]:
    values: dict[str, Any] = {"age": duration(round(lasted))}
    if call := _describe_long_call(publisher):
        text = _(
            "Not delivering for %(age)s: %(due)s due for %(publisher)r. The handler %(handler)s has been handling "
            "message %(id)s for %(lasted)s."
        )
        return text, values | call
    if publisher.relays and publisher.not_accepted:
        text = _("Not delivering for %(age)s: %(due)s due for %(publisher)r, and a destination accepts none%(reason)s.")
        return text, {**values, "reason": publisher.not_accepted}
    if publisher.relays:
        text = ngettext_lazy(
            "Not delivering for %(age)s: %(due)s due for %(publisher)r, %(count)s relay.",
            "Not delivering for %(age)s: %(due)s due for %(publisher)r, %(count)s relays.",
            "number",
        )
        return text, {**values, **_counted(Count(publisher.relays))}
    if publisher.drains:
        text = _(
            "Not delivering for %(age)s: %(due)s due for %(publisher)r. No relay is running; the last drain ended "
            "%(ended)s ago%(reason)s."
        )
        ended = duration(round(_seconds_since(publisher.last_drain, status)))
        return text, {**values, "ended": ended, "reason": publisher.last_drain_outage}
    lost = _find_lost(publisher, status)
    if not lost:
        return _("Not delivering for %(age)s: %(due)s due for %(publisher)r, no relay is running."), values
    text = _(
        "Not delivering for %(age)s: %(due)s due for %(publisher)r, no relay is running (%(count)s last seen %(seen)s "
        "ago)."
    )
    seen = duration(round(min(relay.seconds_since_seen for relay in lost)))
    return text, {**values, "seen": seen, "count": Count(len(lost))}


def _describe_long_call(publisher: PublisherStatus) -> dict[str, Any]:
    call = publisher.call
    if call is None or call.seconds <= PATIENCE:
        return {}
    return {"handler": call.handler, "id": call.id, "lasted": duration(round(call.seconds))}


def _explain_delay(publisher: PublisherStatus, status: Status) -> tuple[Any, dict[str, Any]]:
    values: dict[str, Any] = {"age": duration(round(publisher.oldest_due or 0.0))}
    if call := _describe_long_call(publisher):
        text = _(
            "Publisher %(publisher)r is %(age)s behind: %(due)s due. The handler %(handler)s has been handling message "
            "%(id)s for %(lasted)s."
        )
        return text, values | call
    if publisher.not_accepted:
        text = _("Publisher %(publisher)r is %(age)s behind: %(due)s due, and a destination accepts none%(reason)s.")
        return text, {**values, "reason": publisher.not_accepted}
    if not publisher.rate_limit:
        return _("Publisher %(publisher)r is %(age)s behind: %(due)s due."), values
    limit, delivered = publisher.rate_limit, publisher.processed_per_minute
    if delivered >= int(limit * 60 * AT_LIMIT):
        rate = limit
        text = _(
            "Publisher %(publisher)r is %(age)s behind: it delivers its limit of %(limit)s messages a second, %(due)s "
            "due (%(left)s left at this rate)."
        )
    else:
        rate = max(delivered, 1) / 60
        text = _(
            "Publisher %(publisher)r is %(age)s behind: it delivered %(delivered)s messages in the last minute, less "
            "than its limit of %(limit)s a second, %(due)s due (%(left)s left at this rate)."
        )
    left = duration(math.ceil(publisher.due.number / rate)) + ("+" if publisher.due.more else "")
    return text, {**values, "limit": f"{limit:g}", "delivered": Count(delivered), "left": left}


def _judge_stream(stream: StreamStatus, status: Status) -> Iterator[Verdict]:
    """Judge how PostgreSQL's log is read. A relay that is behind, paused or without its broker may not read it."""

    def found(code: str, text: Any, **values: Any) -> Verdict:
        return Verdict(Level.WARNING, code, text, stream.publisher, values={"publisher": stream.publisher, **values})

    if stream.log_kept is not None and stream.log_kept > MAX_LOG_KEPT:
        text = _(
            "PostgreSQL keeps %(kept)s of its log for the relay of publisher %(publisher)r: a transaction has been "
            "open for long, or the relay does not respond. End one of them."
        )
        yield found("log_kept", text, kept=filesizeformat(stream.log_kept).replace("\xa0", " "))
    publishers = [each for each in status.publishers if each.alias == stream.publisher]
    is_behind = any(each.outage or each.paused or (each.oldest_due or 0.0) > LOG_PATIENCE for each in publishers)
    began = [each.started_at for each in status.relays if each.alive and stream.publisher in each.publishers]
    has_had_time = any(_seconds_since(at, status) > LOG_PATIENCE for at in began)
    if stream.log_is_read is False and has_had_time and not is_behind:
        text = _(
            "No relay reads PostgreSQL's log for publisher %(publisher)r; the table is searched instead. Run the "
            "system checks on the database to see what is missing."
        )
        yield found("log_not_read", text)


def describe_stream(stream: StreamStatus, status: Status) -> str:
    """Return who moves the stream, and whether the log is read."""
    parts = []
    if stream.moved_at is None:
        parts.append(gettext("no relay has read the stream yet"))
    else:
        text = gettext("stream of %(relay)s") if stream.owned else gettext("stream of %(relay)s (%(state)s)")
        parts.append(text % {"relay": stream.relay, "state": gettext(stream.relay_state)})
        ago = gettext("%(age)s ago") % {"age": duration(round(max(_seconds_since(stream.moved_at, status), 0.0)))}
        parts.append(gettext("moved %(age)s") % {"age": ago})
    if stream.log_is_read is not None:
        text = gettext("PostgreSQL's log is read") if stream.log_is_read else gettext("PostgreSQL's log is not read")
        kept = gettext("%(kept)s of it kept") % {"kept": filesizeformat(stream.log_kept)} if stream.log_kept else ""
        parts.append(", ".join(filter(None, [text, kept])))
    return " · ".join(parts)


def _judge_consumer(consumer: ConsumerStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    def found(level: Level, code: str, text: Any, **values: Any) -> Verdict:
        return Verdict(level, code, text, consumer=consumer.alias, values={"consumer": consumer.alias, **values})

    outage = consumer.outage
    if not consumer.inboxes:
        silence = _seconds_since(consumer.seen_at, status)
        age = duration(round(silence))
        if consumer.stopped:
            text = _("Consumer %(consumer)r is not read: run_inbox stopped %(age)s ago.")
            yield found(Level.WARNING, "not_read", text, age=age)
        else:
            text = _("Consumer %(consumer)r is not read: its inbox was last seen %(age)s ago.")
            yield found(Level.CRITICAL if silence > max_age else Level.WARNING, "not_read", text, age=age)
    elif outage and outage.crashes:
        text = ngettext_lazy(
            "The reader of consumer %(consumer)r crashed %(count)s time%(reason)s.",
            "The reader of consumer %(consumer)r crashed %(count)s times in a row%(reason)s.",
            "number",
        )
        level = Level.CRITICAL if outage.crashes >= MANY_CRASHES else Level.WARNING
        yield found(level, "crashed", text, reason=outage.reason, **_counted(Count(outage.crashes)))
    elif outage:
        lasted = _seconds_since(outage.since, status)
        level = Level.CRITICAL if lasted > max_age else Level.WARNING
        text = _("Consumer %(consumer)r has been unavailable for %(lasted)s%(reason)s.")
        yield found(level, "not_receiving", text, lasted=duration(round(lasted)), reason=outage.reason)
    elif consumer.state == "paused":
        text = _("Consumer %(consumer)r pauses because of the backlog of its publisher.")
        yield found(Level.WARNING, "backlog", text)


def _judge_failures(status: Status) -> Iterator[Verdict]:
    if status.blocked_keys:
        first = status.blocked_keys[0]
        text = ngettext_lazy(
            "%(count)s key is blocked: %(waiting)s waiting behind %(key)r.",
            "%(count)s keys are blocked, with most messages behind %(key)r: %(waiting)s waiting.",
            "number",
        )
        values = {
            "key": first.key,
            "waiting": first.waiting,
            **_counted(Count(len(status.blocked_keys), more=not status.blocked_keys_are_complete)),
        }
        yield Verdict(Level.WARNING, "blocked", text, first.publisher, values=values)
    failed = sum((publisher.failed for publisher in status.publishers), NONE)
    if failed:
        text = ngettext_lazy("%(count)s message failed.", "%(count)s messages failed.", "number")
        yield Verdict(Level.WARNING, "failed", text, values=_counted(failed))


def _all_is_well(status: Status) -> Verdict:
    due = sum((publisher.due for publisher in status.publishers if not publisher.paused), NONE)
    rate = sum(publisher.processed_per_minute for publisher in status.publishers)
    if rate:
        text = ngettext_lazy(
            "Delivering: %(count)s message in the last minute, %(due)s due.",
            "Delivering: %(count)s messages in the last minute, %(due)s due.",
            "number",
        )
        return Verdict(Level.OK, "delivering", text, values={"due": due, **_counted(Count(rate))})
    if due:
        text = ngettext_lazy(
            "%(count)s message is due, and it is not late.",
            "%(count)s messages are due, none of them late.",
            "number",
        )
        return Verdict(Level.OK, "delivering", text, values=_counted(due))
    if any(relay.alive for relay in status.relays) or any(publisher.drains for publisher in status.publishers):
        return Verdict(Level.OK, "idle", _("Nothing is due."))
    return Verdict(Level.OK, "idle", _("Nothing is due. No relay has been seen lately."))


def _list(names: Sequence[str]) -> str:
    return ", ".join([*names[:MAX_NAMES], *["…"] * (len(names) > MAX_NAMES)])


def _counted(count: Count) -> dict[str, Any]:
    """Return the values of a text with a plural."""
    return {"count": count, "number": count.number + count.more}


def _seconds_since(time: datetime.datetime | None, status: Status) -> float:
    return (status.at - (time or status.at)).total_seconds()


def _details(pause: PausedType) -> str:
    """Return " (ada: upgrade)": the operator and the reason, as far as they are known."""
    known = ": ".join(filter(None, [pause.paused_by, pause.reason]))
    return f" ({known})" if known else ""
