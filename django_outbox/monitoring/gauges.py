"""The gauges that Prometheus and OpenTelemetry show: names, labels, and their values in the figures.

None of them is a counter: the relays' counts in the database are deleted after a day and begin at 0 with each relay, so
their sums are not monotonic. A relay's own process has counters; see `prometheus.RelayMetrics`. Labels are bounded:
databases, publishers, consumers, codes, results and states, never a relay, a type or a key.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from django_outbox.monitoring.figures import CONSUMER_STATES, NOT_READ, PublisherStatus, StreamStatus
from django_outbox.monitoring.readings import Reading

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""

RESULTS = ("received", "stored", "known", "invalid", "dropped", "rejected")
"""The results for messages that an inbox receives."""

BREAKER_STATES = ("closed", "half-open", "open")


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge.

    Args:
        name: its name without the prefix and the unit.
        labels: the names of its labels; the first one is `database`.
        read: returns its samples in the figures of one database, with the values of the other labels.
        unit: `s` for seconds, `By` for bytes, otherwise blank.
    """

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Iterable[Sample]]
    unit: str = ""

    def samples(self, readings: Iterable[Reading]) -> Iterator[Sample]:
        for reading in readings:
            for labels, value in self.read(reading):
                yield (reading.using, *labels), float(value)


def _publisher_gauge(name: str, help: str, value: Callable[[PublisherStatus], float], unit: str = "") -> Gauge:
    def read(reading: Reading) -> Iterator[Sample]:
        for publisher in reading.status.publishers:
            yield (publisher.alias,), value(publisher)

    return Gauge(name, help, ("database", "publisher"), read, unit)


def _stream_gauge(name: str, help: str, value: Callable[[StreamStatus], float | None], unit: str = "") -> Gauge:
    def read(reading: Reading) -> Iterator[Sample]:
        for stream in reading.status.streams:
            if (known := value(stream)) is not None:
                yield (stream.publisher,), known

    return Gauge(name, help, ("database", "publisher"), read, unit)


def _open_transaction(reading: Reading) -> Iterator[Sample]:
    if reading.status.streams:
        yield (), reading.open_transaction_seconds or 0.0


def _blocked_keys(reading: Reading) -> Iterator[Sample]:
    blocked = Counter(key.publisher for key in reading.status.blocked_keys)
    for publisher in reading.status.publishers:
        yield (publisher.alias,), blocked[publisher.alias]


def _truncated_counts(publisher: PublisherStatus) -> int:
    counts = ("due", "blocked", "retrying", "delayed", "failed", "blocking")
    return sum(getattr(publisher, name).more for name in counts)


def _outages(reading: Reading) -> Iterator[Sample]:
    for publisher in reading.status.publishers:
        lasted = reading.status.at - (publisher.outage_since or reading.status.at)
        yield (publisher.alias,), max(lasted.total_seconds(), 0.0)


def _breaker_states(reading: Reading) -> Iterator[Sample]:
    for publisher in reading.status.publishers:
        for state in BREAKER_STATES:
            yield (publisher.alias, state), publisher.breaker == state


def _inbox_messages(reading: Reading) -> Iterator[Sample]:
    for consumer in reading.status.consumers:
        for result in RESULTS:
            yield (consumer.alias, result), getattr(consumer, result)


def _consumer_states(reading: Reading) -> Iterator[Sample]:
    for consumer in reading.status.consumers:
        for state in (*CONSUMER_STATES, NOT_READ):
            yield (consumer.alias, state), consumer.state == state


GAUGES = (
    Gauge(
        "up",
        "Whether the figures of the outbox could be read from the database.",
        ("database",),
        lambda reading: [((), not reading.problem)],
    ),
    Gauge(
        "level",
        "The most urgent verdict: 0 if all is well, 1 for a warning, 2 if it is critical.",
        ("database",),
        lambda reading: [((), reading.level)],
    ),
    Gauge(
        "verdict",
        "Each verdict that holds now: 0 if all is well, 1 for a warning, 2 if it is critical.",
        ("database", "publisher", "consumer", "code"),
        lambda reading: [((each.publisher, each.consumer, each.code), each.level) for each in reading.findings],
    ),
    _publisher_gauge(
        "due_messages", "Messages that relays can deliver now, in the order of each key.", lambda p: p.due.number
    ),
    _publisher_gauge(
        "oldest_due",
        "Time for which the oldest due message has been waiting; 0 if none is due.",
        lambda p: p.oldest_due or 0.0,
        unit="s",
    ),
    _publisher_gauge(
        "blocked_messages",
        "Messages that would be due, but wait behind one of their key that is not.",
        lambda p: p.blocked.number,
    ),
    _publisher_gauge("retrying_messages", "Messages that wait for another attempt.", lambda p: p.retrying.number),
    _publisher_gauge(
        "delayed_messages", "Messages that wait for the time that enqueue was given.", lambda p: p.delayed.number
    ),
    _publisher_gauge(
        "failed_messages", "Failed messages that wait for a person's decision.", lambda p: p.failed.number
    ),
    _publisher_gauge("blocking_messages", "Failed messages that block their key.", lambda p: p.blocking.number),
    Gauge(
        "blocked_keys",
        "Keys with messages behind one that cannot be delivered.",
        ("database", "publisher"),
        _blocked_keys,
    ),
    _publisher_gauge(
        "truncated_counts",
        "Number of counts of messages that stopped at their limit, so that there may be more.",
        _truncated_counts,
    ),
    _publisher_gauge(
        "last_minute_processed_messages",
        "Messages that were delivered in the last full minute, or in the current one if they are more.",
        lambda p: p.processed_per_minute,
    ),
    _publisher_gauge(
        "last_minute_failed_messages",
        "Messages that failed in the last full minute, or in the current one if they are more.",
        lambda p: p.failed_per_minute,
    ),
    Gauge(
        "outage",
        "Time for which the publisher has been unavailable; 0 if it is available.",
        ("database", "publisher"),
        _outages,
        unit="s",
    ),
    Gauge(
        "breaker_state",
        "1 for the worst state of the circuit breakers of the relays that serve the publisher, 0 for other states.",
        ("database", "publisher", "state"),
        _breaker_states,
    ),
    _publisher_gauge("relays", "Relays that serve the publisher and were seen lately.", lambda p: p.relays),
    _publisher_gauge("publisher_configured", "Whether the publisher is in the settings.", lambda p: p.configured),
    _publisher_gauge("publisher_paused", "Whether the publisher is paused.", lambda p: p.paused is not None),
    _publisher_gauge(
        "paused_types", "Number of types of the publisher's messages that are paused.", lambda p: len(p.paused_types)
    ),
    Gauge(
        "inboxes",
        "Processes of run_inbox that read the consumer and were seen lately.",
        ("database", "consumer"),
        lambda reading: [((each.alias,), each.inboxes) for each in reading.status.consumers],
    ),
    Gauge(
        "last_minute_inbox_messages",
        "Messages that the inboxes of the consumer received in the last minute, by result.",
        ("database", "consumer", "result"),
        _inbox_messages,
    ),
    Gauge(
        "consumer_state",
        "1 for the worst state of the consumer that its inboxes report, 0 for other states.",
        ("database", "consumer", "state"),
        _consumer_states,
    ),
    _stream_gauge("stream_messages", "Messages of the stream that are not delivered.", lambda s: s.waiting.number),
    _stream_gauge(
        "stream_oldest",
        "Time since the oldest message of the stream that is not delivered was enqueued; 0 if there is none.",
        lambda s: s.oldest or 0.0,
        unit="s",
    ),
    _stream_gauge(
        "stream_owned",
        "Whether the relay that moved the stream's position last is alive, for every position of the stream.",
        lambda s: s.owned,
    ),
    _stream_gauge(
        "stream_log_read",
        "Whether a relay reads PostgreSQL's log; absent if the source is another one, or on a standby.",
        lambda s: s.log_is_read,
    ),
    _stream_gauge(
        "stream_log_kept",
        "Size of the log that PostgreSQL keeps for the relay that reads it; absent if none does.",
        lambda s: s.log_kept,
        unit="By",
    ),
    _stream_gauge("stream_standbys", "Other relays that can take the stream over.", lambda s: len(s.standbys)),
    Gauge(
        "open_transaction",
        "Time for which the oldest transaction with a change has been open, if there are streams: its messages wait.",
        ("database",),
        _open_transaction,
        unit="s",
    ),
)
"""All gauges, in the order in which they are shown."""
