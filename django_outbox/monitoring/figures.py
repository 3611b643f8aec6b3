"""The figures of an outbox, and the verdicts about them, as plain values."""

import datetime
import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.utils.formats import number_format
from django.utils.translation import gettext_noop


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

    Args:
        resuming: whether the type was resumed, but not all of its held messages are due again.
        held: number of messages of the type that are held. Those that wait behind them count as blocked.
    """

    type: str
    reason: str
    paused_by: str
    paused_at: datetime.datetime
    resuming: bool = False
    held: Count = NONE


@dataclass(frozen=True, slots=True)
class OutageFigure:
    """Why a broker cannot be reached, or a thread crashed, and since when.

    Args:
        crashes: how often the thread crashed in a row; 0 for a broker.
    """

    reason: str
    since: datetime.datetime
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class RunningCall:
    """A call of a handler that had not returned when its relay reported.

    Args:
        handler: its name.
        id: the message that it was called with.
        seconds: for how long it had been running then.
    """

    handler: str
    id: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PublisherStatus:
    """The figures of one publisher.

    Args:
        configured: whether it is in `OUTBOX["PUBLISHERS"]`.
        due: messages that relays can deliver now, in the order of each key, and messages for destinations that accept
            none. If not all keys were read, messages that
            are blocked without being known as such count, too.
        oldest_due: seconds for which the oldest due message has been waiting; None if none is due.
        oldest_is_exact: False if an even older one may exist among messages that were not counted.
        blocked: messages that would be due, but wait behind one of their key that is not: it failed, waits for its
            retry, or is delayed or held.
        retrying: messages that wait for another attempt.
        delayed: messages that wait for the time that `enqueue` was given.
        held: messages that wait for an operator, because their type is paused or because they were held themselves.
        processed_per_minute: messages that were delivered in the last 60 seconds: in the
            last six slots of 10 seconds up to the latest report of each relay.
        delivered_at: the time by which the last delivery was reported, to 10 seconds, or to a minute if it was more
            than 10 minutes ago; None if there was none in the last day.
        rate_limit: the number of messages a second that all relays together may deliver; None without a limit.
        breaker: the worst state of the circuit breakers of the relays that serve it: `closed`, `half-open` or `open`,
            or `crashed` if a worker crashed lately; empty if no relay serves it. If only some relays cannot reach the
            broker, the others count.
        outage: why no relay can reach the broker, or why a worker crashed; None if neither applies.
        not_accepted: the error of a message that counts as due although it waits because its destination accepts none;
            empty if there is none.
        refused: why the database refuses every new state of one of its messages; empty if it does not.
        call: the oldest call of a handler that had not returned when its relay reported; None if none was running.
        relays: number of running relays that serve it.
        drains: number of drains, or single batches, of it that ended lately. They do not count as relays.
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
    held: Count = NONE
    failed: Count = NONE
    blocking: Count = NONE
    processed_per_minute: int = 0
    delivered_at: datetime.datetime | None = None
    rate_limit: float | None = None
    breaker: str = ""
    not_accepted: str = ""
    refused: str = ""
    outage: OutageFigure | None = None
    call: RunningCall | None = None
    relays: int = 0
    drains: int = 0
    last_drain: datetime.datetime | None = None
    last_drain_outage: str = ""
    paused: PausedType | None = None
    paused_types: tuple[PausedType, ...] = ()

    @property
    def counts(self) -> tuple[Count, ...]:
        """The counts of messages, in the order in which every view shows them."""
        return (self.due, self.blocked, self.retrying, self.delayed, self.held, self.failed, self.blocking)


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The figures of a publisher's stream.

    Args:
        relay: the relay that moved the position last; empty if none did.
        relay_state: the state of that relay, one of `RELAY_STATES`; empty if there is none.
        moved_at: when it did.
        waiting: messages of the stream that are not delivered.
        oldest: seconds since the oldest of them was enqueued; None if there is none.
        log_is_read: whether a relay reads PostgreSQL's log; None if the `SOURCE` is not "log", or on a standby.
        log_kept: bytes of the log that PostgreSQL keeps for that relay; None if none reads it, or that is unknown.
    """

    publisher: str
    relay: str = ""
    relay_state: str = ""
    moved_at: datetime.datetime | None = None
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
        blocking: how many of them block their key.
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
        error: the first line of its error.
        next_attempt: the time of its next attempt; None if it failed.
    """

    publisher: str
    key: str
    id: int
    type: str
    failed: bool
    error_class: str
    since: datetime.datetime
    waiting: Count
    error: str = ""
    next_attempt: datetime.datetime | None = None


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
    refused: dict[str, str] = field(default_factory=dict)
    calls: dict[str, RunningCall] = field(default_factory=dict)

    @property
    def alive(self) -> bool:
        return self.state == RUNNING

    @property
    def served(self) -> list[str]:
        """Its publishers, each with the state of the circuit breaker in brackets unless that is closed."""
        return [alias if state == "closed" else f"{alias} ({state})" for alias, state in self.publishers.items()]


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
        outage: why the broker is unavailable, or the reader crashed; None if neither applies.
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
    outage: OutageFigure | None = None


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
        code: a stable name, one of `verdicts.CODES`.
        text: the sentence, to be translated, with named placeholders for `values`.
        publisher: the alias of the publisher that it is about; empty for a consumer or the whole outbox.
        consumer: the alias of the consumer that it is about; otherwise empty.
        values: the values in the sentence; in a text with a plural, `number` chooses it. The `reason` of an outage or
            a crash may be long.
    """

    level: Level
    code: str
    text: Any = ""
    publisher: str = ""
    consumer: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reason(self) -> str:
        """Why something is unavailable or has crashed, without a full stop; otherwise empty."""
        return str(self.values.get("reason", "")).rstrip(".")

    @property
    def sentence(self) -> str:
        """The sentence in the active language, with a full stop."""
        return self._write(f" ({self.reason})" if self.reason else "")

    @property
    def headline(self) -> str:
        """The sentence without the reason."""
        return self._write("")

    def _write(self, reason: str) -> str:
        return str(self.text % {**self.values, "reason": reason})


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
        last_hour: counts of each minute, the oldest first.
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
    last_hour: tuple[PeriodCount, ...] = ()
    verdicts: tuple[Verdict, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The most urgent verdict."""
        return self.verdicts[0]

    @property
    def level(self) -> Level:
        """The level of the most urgent verdict."""
        return self.verdict.level
