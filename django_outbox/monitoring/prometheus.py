"""The figures for Prometheus, which are gauges. Needs `prometheus_client`.

The figures are not counters: the relays' counts in the database are deleted after a day and begin at 0 with each relay,
so their sums are not monotonic. Labels are bounded: databases, publishers, consumers, codes and results,
never a relay, a type or a key.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_outbox.monitoring.figures import PublisherStatus, Status
from django_outbox.monitoring.readings import Reading, read_all

__all__ = ["OutboxCollector"]

RESULTS = ("received", "stored", "known", "invalid", "dropped", "rejected")
"""The results for messages that an inbox receives."""

Sample = tuple[tuple[str, ...], float]
"""The values of the labels, and the value."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge: `read` returns its samples in one database, with the values of all labels but `database`."""

    name: str
    help: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Iterable[Sample]]

    def family(self, readings: Iterable[Reading]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(f"django_outbox_{self.name}", self.help, labels=self.labels)
        for reading in readings:
            for labels, value in self.read(reading):
                family.add_metric([reading.using, *labels], float(value))
        return family


def _publisher_gauge(name: str, help: str, value: Callable[[PublisherStatus, Status], float | None]) -> Gauge:

    def read(reading: Reading) -> list[Sample]:
        found = [(each.alias, value(each, reading.status)) for each in reading.status.publishers]
        return [((alias,), number) for alias, number in found if number is not None]

    return Gauge(name, help, ("database", "publisher"), read)


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
        lambda reading: [((each.publisher, each.consumer, each.code), each.level) for each in reading.verdicts],
    ),
    _publisher_gauge(
        "due_messages",
        "Messages that relays can deliver now, in the order of each key, or could if their destination accepted them.",
        lambda p, _: p.due.number,
    ),
    _publisher_gauge(
        "oldest_due_seconds",
        "Time for which the oldest due message has been waiting; 0 if none is due.",
        lambda p, _: p.oldest_due or 0.0,
    ),
    _publisher_gauge(
        "blocked_messages",
        "Messages that would be due, but wait behind one of their key that is not.",
        lambda p, _: p.blocked.number,
    ),
    _publisher_gauge("retrying_messages", "Messages that wait for another attempt.", lambda p, _: p.retrying.number),
    _publisher_gauge(
        "delayed_messages", "Messages that wait for the time that enqueue was given.", lambda p, _: p.delayed.number
    ),
    _publisher_gauge(
        "held_messages", "Messages that wait for an operator to release them.", lambda p, _: p.held.number
    ),
    _publisher_gauge(
        "failed_messages", "Failed messages that wait for a person's decision.", lambda p, _: p.failed.number
    ),
    _publisher_gauge("blocking_messages", "Failed messages that block their key.", lambda p, _: p.blocking.number),
    _publisher_gauge(
        "blocked_keys",
        "Keys with messages behind one that cannot be delivered.",
        lambda p, status: sum(key.publisher == p.alias for key in status.blocked_keys),
    ),
    _publisher_gauge(
        "truncated_counts",
        "Number of counts of messages that stopped at their limit, so that there may be more.",
        lambda p, _: sum(count.more for count in p.counts),
    ),
    _publisher_gauge(
        "last_minute_processed_messages",
        "Messages that were delivered in the last 60 seconds.",
        lambda p, _: p.processed_per_minute,
    ),
    _publisher_gauge(
        "rate_limit",
        "Messages that all relays together may deliver in a second; absent without a RATE_LIMIT.",
        lambda p, _: p.rate_limit,
    ),
    _publisher_gauge(
        "outage_seconds",
        "Time for which the publisher has been unavailable to all relays; 0 if one can reach it.",
        lambda p, status: max((status.at - p.outage.since).total_seconds(), 0.0) if p.outage else 0.0,
    ),
    _publisher_gauge("relays", "Running relays that serve the publisher.", lambda p, _: p.relays),
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
        lambda reading: [
            ((each.alias, result), getattr(each, result)) for each in reading.status.consumers for result in RESULTS
        ],
    ),
    Gauge(
        "stream_log_kept_bytes",
        "Size of the log that PostgreSQL keeps for the relay that reads it; absent if none does.",
        ("database", "publisher"),
        lambda reading: [
            ((each.publisher,), each.log_kept) for each in reading.status.streams if each.log_kept is not None
        ],
    ),
)
"""All gauges, in the order in which they are shown."""


class OutboxCollector(Collector):
    """A collector that reads the figures when it is scraped.

    Registering it queries no database. The figures come from the database, so each process reports the same ones.

    Args:
        databases: the database aliases; by default the one that the router chooses for writing.
    """

    def __init__(self, databases: Sequence[str] | None = None) -> None:
        self._databases = databases

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the metrics without samples, from which a registry learns their names."""
        return [gauge.family([]) for gauge in GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the figures. A database that is unavailable has `django_outbox_up` 0."""
        readings = read_all(self._databases)
        for gauge in GAUGES:
            yield gauge.family(readings)


def expose(databases: Sequence[str], accept: str) -> tuple[bytes, str]:
    registry = CollectorRegistry()
    registry.register(OutboxCollector(databases))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
