"""The figures of an outbox, as plain values: what `status` returns."""

import datetime
import enum
from dataclasses import dataclass, field

__all__ = [
    "BlockedKey",
    "ConsumerStatus",
    "Count",
    "FailureGroup",
    "Level",
    "Outage",
    "PausedType",
    "PeriodCount",
    "PublisherStatus",
    "RelayStatus",
    "Status",
    "Verdict",
]


CODES = (
    "not_delivering",
    "unavailable",
    "unknown_publisher",
    "not_read",
    "not_receiving",
    "behind",
    "backlog",
    "paused",
    "blocked",
    "failed",
    "delivering",
    "idle",
)
"""The codes of verdicts, the most important first: of two verdicts of one level, the earlier one comes first."""


class Level(enum.IntEnum):
    """How urgent something is. The values are the exit codes of `outbox_status`, as Nagios defines them."""

    OK = 0
    WARNING = 1
    CRITICAL = 2


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows that was counted up to a limit.

    Args:
        number: the rows that were counted.
        more: whether counting stopped there, so that there may be more.
    """

    number: int = 0
    more: bool = False

    def __bool__(self) -> bool:
        return self.number > 0 or self.more

    def __str__(self) -> str:
        return f"{self.number:,}{'+' if self.more else ''}"

    def up_to(self, limit: int) -> "Count":
        """Return this number, or the limit if it is higher."""
        return Count(limit, more=True) if self.number > limit else self

    def __add__(self, other: "Count") -> "Count":
        return Count(self.number + other.number, self.more or other.more)

    def __sub__(self, other: "Count") -> "Count":
        return Count(max(self.number - other.number, 0), self.more or other.more)


NONE = Count()
"""No rows."""


@dataclass(frozen=True, slots=True)
class PausedType:
    """A type of messages that an operator has paused, or the whole publisher if `type` is blank.

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
        alias: the publisher's alias.
        configured: whether it is in `OUTBOX["PUBLISHERS"]`.
        due: messages that could be delivered now.
        oldest_due: seconds for which the oldest due message has been waiting; None if none is due.
        oldest_is_exact: False if an even older one may exist among messages that were not counted.
        retrying: messages that wait for another attempt.
        delayed: messages that wait for the time that `enqueue` was given.
        failed: failed messages.
        blocking: failed messages that block their key.
        processed_per_minute: messages delivered in the last full minute.
        failed_per_minute: messages that failed in the last full minute.
        processed_lately: whether any message was delivered in the last full minute or since.
        breaker: the worst state of the circuit breakers of the relays that serve it: `closed`, `half-open` or `open`;
            blank if no relay serves it.
        outage: why it is unavailable; blank if it is available.
        outage_since: since when.
        relays: number of relays that serve it and were seen lately.
        paused: the pause of the whole publisher, if there is one.
        paused_types: the types of its messages that are paused.
    """

    alias: str
    configured: bool = True
    due: Count = NONE
    oldest_due: float | None = None
    oldest_is_exact: bool = True
    retrying: Count = NONE
    delayed: Count = NONE
    failed: Count = NONE
    blocking: Count = NONE
    processed_per_minute: int = 0
    failed_per_minute: int = 0
    processed_lately: bool = False
    breaker: str = ""
    outage: str = ""
    outage_since: datetime.datetime | None = None
    relays: int = 0
    paused: PausedType | None = None
    paused_types: tuple[PausedType, ...] = ()


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Failed messages with the same cause.

    Args:
        publisher, error_class, type: what they have in common.
        count: their number among the failed messages that were looked at.
        blocking: how many of them block their key.
        first, last: the times of the first and the last failure.
    """

    publisher: str
    error_class: str
    type: str
    count: int
    blocking: int
    first: datetime.datetime
    last: datetime.datetime


@dataclass(frozen=True, slots=True)
class BlockedKey:
    """A key whose messages wait behind one that failed or waits for its retry.

    Args:
        publisher, key: which messages wait.
        id, type: the message that blocks them.
        failed: whether it failed; otherwise it will be retried.
        error_class: the class of its last error.
        since: the time of its first error, or of its failure.
        waiting: how many messages wait behind it.
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
class Outage:
    """Why a relay cannot reach a publisher's broker, and since when."""

    reason: str
    since: datetime.datetime


@dataclass(frozen=True, slots=True)
class RelayStatus:
    """A relay's latest report.

    Args:
        name: host name, process id and a random part, such as `web-7f9c:7:3fa2c1`.
        alive: whether it was seen lately and has not ended. Drains are alive only if they end often enough.
        seconds_since_seen: the age of the report.
        mode: `run`, `drain` or `once`.
        publishers: the state of each publisher's circuit breaker, by alias.
        outages: the outages of publishers, by alias.
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
    alive: bool
    processed: int
    retried: int
    failed: int
    outages: dict[str, Outage] = field(default_factory=dict)


NOT_READ = "not_read"
"""The state of a consumer that no inbox reads."""

CONSUMER_STATES = ("unavailable", "paused", "reading")
"""The states that inboxes report of a consumer, the worst first."""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """The figures of one consumer, over all inboxes that read it.

    Args:
        alias: the consumer's alias.
        source: its queue and the address of the broker.
        state: the worst state that the inboxes report: `unavailable` (the broker), `paused` (because of the backlog) or
            `reading`; `not_read` if no inbox was seen lately.
        inboxes: number of processes that read it and were seen lately.
        received, stored, known, invalid, dropped, rejected: counts of messages in the last minute, by result.
        outage: why the broker is unavailable; blank if it is available.
        outage_since: since when.
        seen_at: the time of the newest report.
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


@dataclass(frozen=True, slots=True)
class PeriodCount:
    """Messages that the relays settled in a period, by result."""

    start: datetime.datetime
    processed: int = 0
    retried: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that is to be known about the outbox, in one sentence.

    Args:
        level: how urgent it is.
        code: a stable name, one of `CODES`.
        sentence: the English sentence, with a full stop.
        publisher: the alias of the publisher that it is about; blank for a consumer or the whole outbox.
        consumer: the alias of the consumer that it is about; otherwise blank.
    """

    level: Level
    code: str
    sentence: str
    publisher: str = ""
    consumer: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """The figures of one database's outbox.

    Args:
        using: the database alias.
        at: the time on the database's clock.
        publishers: the figures of each publisher, those of the settings first.
        failures: the newest failed messages, grouped by cause, the largest group first.
        failures_are_complete: False if older failed messages were not looked at.
        blocked_keys: keys that stand still, the one with the most messages waiting first.
        relays: the latest report of each relay, the newest first.
        consumers: the figures of each consumer that `run_inbox` reads or has read lately, by alias.
        last_hour: counts of each minute, the oldest first.
        last_day: counts of each quarter of an hour, the oldest first.
        verdicts: what is to be known, the most urgent first; never empty.
    """

    using: str
    at: datetime.datetime
    publishers: tuple[PublisherStatus, ...] = ()
    failures: tuple[FailureGroup, ...] = ()
    failures_are_complete: bool = True
    blocked_keys: tuple[BlockedKey, ...] = ()
    relays: tuple[RelayStatus, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    last_hour: tuple[PeriodCount, ...] = ()
    last_day: tuple[PeriodCount, ...] = ()
    verdicts: tuple[Verdict, ...] = field(default=())

    @property
    def verdict(self) -> Verdict:
        """The most urgent thing to be known."""
        return self.verdicts[0]

    @property
    def level(self) -> Level:
        """How urgent the most urgent thing is."""
        return self.verdict.level
