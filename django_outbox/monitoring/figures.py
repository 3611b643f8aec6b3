"""The figures of an outbox, as plain values, and the verdicts that they lead to."""

import datetime
import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from django.template.defaultfilters import filesizeformat
from django.utils.formats import number_format
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, ngettext_lazy

from django_outbox.service.heartbeats import REPORT_INTERVAL
from django_outbox.stores.clock import TOLERANCE
from django_outbox.stores.stream import OpenTransaction
from django_outbox.utils.text import duration

CODES = (
    "crashed",
    "not_delivering",
    "unavailable",
    "not_reporting",
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

LOG_PATIENCE = 60.0
"""Seconds after its start in which a relay may search the table instead of reading the log."""


class Level(enum.IntEnum):
    """The urgency of a verdict. The values are the exit codes of `outbox_status`, as Nagios defines them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows that was counted up to a limit.

    Args:
        more: whether counting stopped there, so that there may be more.
    """

    number: int = 0
    more: bool = False

    def __bool__(self) -> bool:
        return self.number > 0 or self.more

    def __str__(self) -> str:
        return f"{number_format(self.number, force_grouping=True)}{'+' if self.more else ''}"

    def up_to(self, limit: int) -> "Count":
        return Count(limit, more=True) if self.number > limit else self

    def __add__(self, other: "Count") -> "Count":
        return Count(self.number + other.number, self.more or other.more)

    def __sub__(self, other: "Count") -> "Count":
        return Count(max(self.number - other.number, 0), self.more or other.more)


NONE = Count()
"""No rows."""


@dataclass(frozen=True, slots=True)
class PausedType:
    """A type of messages that an operator has paused, or the whole publisher if `type` is empty.

    `resuming` means that the type was resumed, but that not all of its held messages are due again.
    """

    type: str
    reason: str
    paused_by: str
    paused_at: datetime.datetime
    resuming: bool = False


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The figures of one publisher.

    Args:
        configured: whether it is in `OUTBOX["PUBLISHERS"]`.
        due: messages that relays can deliver now, in the order of each key. If not all keys were read, messages that
            are blocked without being known as such count, too.
        oldest_due: seconds for which the oldest due message has been waiting; None if none is due.
        oldest_is_exact: False if an even older one may exist among messages that were not counted.
        blocked: messages that would be due, but wait behind one of their key that is not: it failed, waits for its
            retry, or is delayed or held.
        retrying: messages that wait for another attempt.
        delayed: messages that wait for the time that `enqueue` was given.
        processed_per_minute, failed_per_minute: messages that were delivered, or failed, in the last 60 seconds: in the
            last six slots of 10 seconds up to the latest report of each relay.
        delivered_at: the time by which the last delivery was reported, to 10 seconds, or to a minute if it was longer
            ago; None if there was none in the last day.
        rate_limit: the number of messages a second that all relays together may deliver; None without a limit.
        breaker: the worst state of the circuit breakers of the relays that serve it: `closed`, `half-open` or `open`,
            or `crashed` if a worker crashed lately; empty if no relay serves it.
        outage: why it is unavailable, or its worker crashed; otherwise empty.
        crashes: how often one worker crashed in a row, at most.
        relays: number of running relays that serve it.
        silent: number of relays that serve it and have missed two reports, but have not been silent for long.
        silent_seconds: the time since the last report of any of them; None if there is none.
        drains: number of drains, or single batches, of it that ended lately. They are no relays.
        last_drain: the time at which the last of them ended.
        last_drain_outage: why that one could not deliver; empty if it could.
    """

    alias: str
    configured: bool = True
    due: Count = NONE
    oldest_due: float | None = None
    oldest_is_exact: bool = True
    blocked: Count = NONE
    retrying: Count = NONE
    delayed: Count = NONE
    failed: Count = NONE
    blocking: Count = NONE
    processed_per_minute: int = 0
    failed_per_minute: int = 0
    delivered_at: datetime.datetime | None = None
    rate_limit: float | None = None
    breaker: str = ""
    outage: str = ""
    outage_since: datetime.datetime | None = None
    crashes: int = 0
    relays: int = 0
    silent: int = 0
    silent_seconds: float | None = None
    drains: int = 0
    last_drain: datetime.datetime | None = None
    last_drain_outage: str = ""
    paused: PausedType | None = None
    paused_types: tuple[PausedType, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The figures of a publisher's stream.

    Args:
        relay: the relay that moved the position last; empty if none did.
        relay_state: the state of that relay, one of `RELAY_STATES`; empty if there is none.
        moved_at: when it did.
        standbys: the other living relays that serve the publisher, one of which takes over.
        waiting: messages of the stream that are not delivered.
        oldest: seconds since the oldest of them was enqueued; None if there is none.
        log_is_read: whether a relay reads PostgreSQL's log; None if the `SOURCE` is not "log", or on a standby.
        log_kept: bytes of the log that PostgreSQL keeps for that relay; None if none reads it, or that is unknown.
    """

    publisher: str
    relay: str = ""
    relay_state: str = ""
    moved_at: datetime.datetime | None = None
    standbys: tuple[str, ...] = ()
    waiting: Count = NONE
    oldest: float | None = None
    log_is_read: bool | None = None
    log_kept: int | None = None

    @property
    def owned(self) -> bool:
        """Whether the relay that moved the position last is running."""
        return self.relay_state == RUNNING


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Messages with the same cause that failed, or that wait for another attempt.

    Args:
        fingerprint: a name for the first line of their errors without numbers and ids; empty if it is not in common.
        example: the first line of the newest error.
        count: their number; there may be more if older failed messages were not looked at.
        blocking: how many of them failed and block their key.
        first, last: the times of the first and the last failure; there may be an earlier one if there may be more.
    """

    publisher: str
    error_class: str
    type: str
    count: Count
    blocking: Count
    first: datetime.datetime
    last: datetime.datetime
    fingerprint: str = ""
    example: str = ""


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key with messages that wait behind one that failed or waits for its retry.

    Args:
        id, type, failed: the message that blocks them, and whether it failed; otherwise it will be retried.
        since: the time of its first error, or of its failure.
    """

    publisher: str
    key: str
    id: int
    type: str
    failed: bool
    error_class: str
    since: datetime.datetime
    waiting: Count


@dataclass(frozen=True, slots=True)
class OutageFigure:
    """Why a relay cannot reach a publisher's broker, or its worker crashed, and since when."""

    reason: str
    since: datetime.datetime
    crashes: int = 0


RUNNING, STOPPED, NOT_SEEN = RELAY_STATES = (
    gettext_noop("running"),
    gettext_noop("stopped"),
    gettext_noop("not seen"),
)
"""The states of a relay: it reports, it has ended in order, or it has missed two reports. A drain reports when it ends,
so it is always stopped."""


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay's latest report.

    Args:
        name: host name, process id and a random part, such as `web-7f9c:7:3fa2c1`.
        state: one of `RELAY_STATES`.
        mode: `run`, `drain` or `once`.
        publishers: the state of each publisher's circuit breaker, or `crashed`, by alias.
    """

    name: str
    host: str
    pid: int
    version: str
    mode: str
    workers: int
    publishers: dict[str, str]
    started_at: datetime.datetime
    seen_at: datetime.datetime
    stopped_at: datetime.datetime | None
    seconds_since_seen: float
    state: str
    processed: int
    retried: int
    failed: int
    outages: dict[str, OutageFigure] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.state == RUNNING


NOT_READ = "not_read"
"""The state of a consumer that no inbox reads."""

CONSUMER_STATES = ("crashed", "unavailable", "paused", "reading")
"""The states that inboxes report of a consumer, the worst first."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The figures of one consumer, over all inboxes that read it.

    Args:
        source: its queue and the address of the broker.
        state: the worst state that the inboxes report: `crashed` (the reader, lately), `unavailable` (the broker),
            `paused` (because of the backlog) or `reading`; `not_read` if no inbox was seen lately.
        inboxes: number of processes that read it and were seen lately.
        received, stored, known, invalid, dropped, rejected: counts of messages in the last minute, by result.
        outage: why the broker is unavailable, or the reader crashed; otherwise empty.
        crashes: how often the reader crashed in a row.
        stopped: whether the inbox that reported last has ended in order.
    """

    alias: str
    source: str
    state: str
    inboxes: int
    seen_at: datetime.datetime
    stopped: bool = False
    received: int = 0
    stored: int = 0
    known: int = 0
    invalid: int = 0
    dropped: int = 0
    rejected: int = 0
    outage: str = ""
    outage_since: datetime.datetime | None = None
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class PeriodCount:
    """Messages that the relays settled in a period, by result."""

    start: datetime.datetime
    processed: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A conclusion from the figures, in one sentence.

    Args:
        code: a stable name, one of `CODES`.
        text: the sentence, to be translated, with named placeholders for `values`.
        publisher: the alias of the publisher that it is about; empty for a consumer or the whole outbox.
        consumer: the alias of the consumer that it is about; otherwise empty.
        values: the values in the sentence; in a text with a plural, `number` chooses it.
    """

    level: Level
    code: str
    text: Any = ""
    publisher: str = ""
    consumer: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The sentence in the active language, with a full stop."""
        return str(self.text % self.values)


@dataclass(frozen=True, slots=True)
class Status:
    """The figures of one database's outbox.

    Args:
        at: the time on the database's clock.
        publishers: the figures of each publisher; publishers in the settings come first.
        failures: the newest failed messages, grouped by cause, the largest group first.
        failures_are_complete: False if older failed messages were not looked at.
        blocked_keys: the keys with messages that wait; the one with the most of them comes first.
        blocked_keys_are_complete: False if there may be more.
        relays: the latest report of each relay, the newest first.
        consumers: the figures of each consumer that `run_inbox` reads or has read lately, by alias.
        open_transaction: the oldest open transaction of the database, if there are streams.
        last_hour: counts of each minute, the oldest first.
        last_day: counts of each quarter of an hour, the oldest first.
        verdicts: the verdicts, the most urgent first; never empty.
    """

    using: str
    at: datetime.datetime
    publishers: tuple[PublisherStatus, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    failures_are_complete: bool = True
    blocked_keys: tuple[BlockedKey, ...] = ()
    blocked_keys_are_complete: bool = True
    relays: tuple[RelayStatus, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    streams: tuple[StreamStatus, ...] = ()
    open_transaction: OpenTransaction | None = None
    last_hour: tuple[PeriodCount, ...] = ()
    last_day: tuple[PeriodCount, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The most urgent verdict."""
        return self.verdicts[0]

    @property
    def level(self) -> Level:
        """The level of the most urgent verdict."""
        return self.verdict.level


def judge(status: Status, max_age: float = MAX_AGE) -> tuple[Verdict, ...]:
    """Return the verdicts, the most urgent first; at least one.

    Args:
        max_age: seconds that a due message may wait, and that an outage may last, before it is critical.
    """
    verdicts = [verdict for publisher in status.publishers for verdict in _judge_publisher(publisher, status, max_age)]
    verdicts += [verdict for stream in status.streams for verdict in _judge_stream(stream, status)]
    verdicts += _judge_clock(status)
    verdicts += _judge_failures(status)
    verdicts += [verdict for consumer in status.consumers for verdict in _judge_consumer(consumer, status, max_age)]
    if not any(verdict.level == Level.CRITICAL or verdict.code in OUTAGES for verdict in verdicts):
        verdicts.append(_all_is_well(status))
    verdicts.sort(key=lambda verdict: (-verdict.level, CODES.index(verdict.code)))
    return tuple(verdicts)


def _judge_publisher(publisher: PublisherStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    late = (publisher.oldest_due or 0.0) > max_age

    def found(level: Level, code: str, text: Any, **values: Any) -> Verdict:
        values |= {"publisher": publisher.alias, "due": publisher.due}
        return Verdict(level, code, text, publisher.alias, values=values)

    if not publisher.configured:
        if waiting := publisher.due + publisher.delayed + publisher.retrying:
            text = ngettext_lazy(
                "%(count)s message is for %(publisher)r, which is not in the settings.",
                "%(count)s messages are for %(publisher)r, which is not in the settings.",
                "number",
            )
            yield found(Level.CRITICAL if late else Level.WARNING, "unknown_publisher", text, **_counted(waiting))
        return
    if publisher.paused:
        text = _("Publisher %(publisher)r is paused%(details)s: %(due)s due.")
        yield found(Level.WARNING, "paused", text, details=_details(publisher.paused))
        return
    for each in publisher.paused_types:
        text = _("Messages of type %(type)r of the publisher %(publisher)r are paused%(details)s.")
        if each.resuming:
            text = _("Some messages of type %(type)r of the publisher %(publisher)r are still held. Resume it again.")
        yield found(Level.WARNING, "paused", text, type=each.type, details=_details(each))
    if publisher.crashes:
        text = ngettext_lazy(
            "A worker of the publisher %(publisher)r crashed %(count)s time (%(reason)s): %(due)s due.",
            "A worker of the publisher %(publisher)r crashed %(count)s times in a row (%(reason)s): %(due)s due.",
            "number",
        )
        level = Level.CRITICAL if publisher.crashes >= MANY_CRASHES else Level.WARNING
        reason = publisher.outage.rstrip(".")
        yield found(level, "crashed", text, reason=reason, **_counted(Count(publisher.crashes)))
    elif publisher.outage:
        lasted = _seconds_since(publisher.outage_since, status)
        text = _("Publisher %(publisher)r has been unavailable for %(lasted)s (%(reason)s): %(due)s due.")
        # A half-open breaker without late messages only waits for a message with which to try the broker.
        level = Level.CRITICAL if late or (publisher.breaker == "open" and lasted > max_age) else Level.WARNING
        yield found(level, "unavailable", text, lasted=duration(round(lasted)), reason=publisher.outage.rstrip("."))
    elif _does_not_deliver(publisher, status):
        lasted = _seconds_without_delivery(publisher, status)
        has_none = not (publisher.relays or publisher.drains)
        text, values = _explain_standstill(publisher, status, lasted)
        level = Level.CRITICAL if late and (has_none or lasted > max_age) else Level.WARNING
        yield found(level, "not_delivering", text, **values)
    else:
        if publisher.silent and publisher.due:
            yield found(Level.WARNING, "not_reporting", _NOT_REPORTING, **_silence_of(publisher))
        if late:
            text, values = _explain_delay(publisher)
            yield found(Level.WARNING, "behind", text, **values)


def _does_not_deliver(publisher: PublisherStatus, status: Status) -> bool:
    """Return whether messages are due, and the relays are gone, or have not delivered any for some time."""
    # Relays of tenants report less often, and nothing is known since the latest report.
    serving = (each for each in status.relays if each.alive and publisher.alias in each.publishers)
    reported = min((each.seconds_since_seen for each in serving), default=0.0)
    patience = MAX_AGE if publisher.drains and not publisher.relays else PATIENCE + max(reported - REPORT_INTERVAL, 0.0)
    if publisher.rate_limit:
        # At a low limit, two deliveries are far apart.
        patience = max(patience, 2 / publisher.rate_limit)
    are_gone = (publisher.processed_per_minute or publisher.silent) and not (publisher.relays or publisher.drains)
    return bool(publisher.due and are_gone) or _seconds_without_delivery(publisher, status) > patience


def _seconds_without_delivery(publisher: PublisherStatus, status: Status) -> float:
    """Return for how long messages have been due and none was delivered."""
    oldest = publisher.oldest_due or 0.0
    return min(oldest, max(_seconds_since(publisher.delivered_at, status), 0.0)) if publisher.delivered_at else oldest


def _explain_standstill(publisher: PublisherStatus, status: Status, lasted: float) -> tuple[Any, dict[str, Any]]:
    values = {"age": duration(round(lasted))}
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
            "%(ended)s ago."
        )
        if publisher.last_drain_outage:
            text = _(
                "Not delivering for %(age)s: %(due)s due for %(publisher)r. No relay is running; the last drain, "
                "%(ended)s ago, failed (%(reason)s)."
            )
        ended = duration(round(_seconds_since(publisher.last_drain, status)))
        return text, {**values, "ended": ended, "reason": publisher.last_drain_outage.rstrip(".")}
    if publisher.silent:
        return _NOT_REPORTING, _silence_of(publisher)
    return _("Not delivering for %(age)s: %(due)s due for %(publisher)r, no relay is running."), values


_NOT_REPORTING = ngettext_lazy(
    "Publisher %(publisher)r: %(count)s relay has not reported for %(silence)s; %(due)s due.",
    "Publisher %(publisher)r: %(count)s relays have not reported for %(silence)s; %(due)s due.",
    "number",
)


def _silence_of(publisher: PublisherStatus) -> dict[str, Any]:
    return {"silence": duration(round(publisher.silent_seconds or 0.0)), **_counted(Count(publisher.silent))}


def _explain_delay(publisher: PublisherStatus) -> tuple[Any, dict[str, Any]]:
    """Explain why due messages are late although some are delivered."""
    values = {"age": duration(round(publisher.oldest_due or 0.0))}
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


def _judge_clock(status: Status) -> Iterator[Verdict]:
    """Judge messages that are not due because the database's clock went back, which a living relay repairs."""
    newest = max((relay.seen_at for relay in status.relays), default=status.at)
    waiting = sum((publisher.delayed + publisher.retrying for publisher in status.publishers), NONE)
    if newest - status.at > TOLERANCE and waiting and not any(relay.alive for relay in status.relays):
        text = ngettext_lazy(
            "The database's clock went back by %(step)s, and no relay has been seen since. %(count)s message waits, "
            "and may be due already: start a relay.",
            "The database's clock went back by %(step)s, and no relay has been seen since. %(count)s messages wait, "
            "and may be due already: start a relay.",
            "number",
        )
        values = {"step": duration(round((newest - status.at).total_seconds())), **_counted(waiting)}
        yield Verdict(Level.WARNING, "not_delivering", text, values=values)


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
            "No relay reads PostgreSQL's log for publisher %(publisher)r; the table is searched instead. Run "
            "outbox_publication to see what is missing."
        )
        yield found("log_not_read", text)


def _judge_consumer(consumer: ConsumerStatus, status: Status, max_age: float) -> Iterator[Verdict]:
    def found(level: Level, code: str, text: Any, **values: Any) -> Verdict:
        return Verdict(level, code, text, consumer=consumer.alias, values={"consumer": consumer.alias, **values})

    if not consumer.inboxes:
        silence = _seconds_since(consumer.seen_at, status)
        age = duration(round(silence))
        if consumer.stopped:
            text = _("Consumer %(consumer)r is not read: run_inbox stopped %(age)s ago.")
            yield found(Level.WARNING, "not_read", text, age=age)
        else:
            text = _("Consumer %(consumer)r is not read: its inbox was last seen %(age)s ago.")
            yield found(Level.CRITICAL if silence > max_age else Level.WARNING, "not_read", text, age=age)
    elif consumer.crashes:
        text = ngettext_lazy(
            "The reader of consumer %(consumer)r crashed %(count)s time (%(reason)s).",
            "The reader of consumer %(consumer)r crashed %(count)s times in a row (%(reason)s).",
            "number",
        )
        level = Level.CRITICAL if consumer.crashes >= MANY_CRASHES else Level.WARNING
        reason = consumer.outage.rstrip(".")
        yield found(level, "crashed", text, reason=reason, **_counted(Count(consumer.crashes)))
    elif consumer.outage:
        lasted = _seconds_since(consumer.outage_since, status)
        level = Level.CRITICAL if lasted > max_age else Level.WARNING
        text = _("Consumer %(consumer)r has been unavailable for %(lasted)s (%(reason)s).")
        reason = consumer.outage.rstrip(".")
        yield found(level, "not_receiving", text, lasted=duration(round(lasted)), reason=reason)
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


def _counted(count: Count) -> dict[str, Any]:
    """Return the values of a text with a plural."""
    return {"count": count, "number": count.number + count.more}


def _seconds_since(time: datetime.datetime | None, status: Status) -> float:
    return (status.at - (time or status.at)).total_seconds()


def _details(pause: PausedType) -> str:
    """Return " (ada: upgrade)": the operator and the reason, as far as they are known."""
    known = ": ".join(filter(None, [pause.paused_by, pause.reason]))
    return f" ({known})" if known else ""
