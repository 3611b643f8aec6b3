"""The figures for Prometheus, and the counters of a relay. Needs `prometheus_client`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_outbox.monitoring.gauges import GAUGES, Gauge
from django_outbox.monitoring.readings import read_all
from django_outbox.signals import batch_settled

__all__ = ["OutboxCollector"]

MAX_TYPES = 100
"""Maximum number of types with their own series, because a type may contain an id."""

REQUEST_TIMEOUT = 5.0
"""Seconds for which a client of the metrics' port may be silent. Each client has a thread."""

OTHER = "other"
"""The label of all further types."""

SUFFIXES = {"": "", "s": "_seconds", "By": "_bytes"}
"""The end of a gauge's name, by its unit."""

COUNTERS = {
    "relay_messages_total": (
        ("database", "publisher", "type", "result"),
        "Messages that the relay has settled, by result: delivered, retried or failed.",
    ),
    "relay_publish_seconds": (
        ("database", "publisher", "type"),
        "Duration of the publish phase, once for each batch and each type that is in it.",
    ),
}
"""The metrics of a relay's own process, without their prefix: labels and meaning."""


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
        return [_family(gauge) for gauge in GAUGES]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Read the figures. A database that is unavailable has `django_outbox_up` 0."""
        readings = read_all(self._databases)
        for gauge in GAUGES:
            family = _family(gauge)
            for labels, value in gauge.samples(readings):
                family.add_metric(labels, value)
            yield family


def expose(databases: Sequence[str], accept: str) -> tuple[bytes, str]:
    """Return the figures as text, and its content type."""
    registry = CollectorRegistry()
    registry.register(OutboxCollector(databases))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(gauge: Gauge) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"django_outbox_{gauge.name}{SUFFIXES[gauge.unit]}", gauge.help, labels=gauge.labels)


class RelayMetrics:
    """Counts what the relays of this process deliver. It counts once for each batch and type, not for each message."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._types: set[str] = set()
        messages, publishing = ((f"django_outbox_{name}", help, labels) for name, (labels, help) in COUNTERS.items())
        self._messages = Counter(*messages, registry=registry)
        self._publishing = Histogram(*publishing, registry=registry)
        batch_settled.connect(self._count)

    def close(self) -> None:
        batch_settled.disconnect(self._count)
        for metric in (self._messages, self._publishing):
            self._registry.unregister(metric)

    def _count(
        self, *, using: str, publisher: str, counts: Mapping[tuple[str, str], int], seconds: float, **_: Any
    ) -> None:
        for (result, type), count in counts.items():
            self._messages.labels(using, publisher, self._label(type), result).inc(count)
        for label in {self._label(type) for _, type in counts}:
            self._publishing.labels(using, publisher, label).observe(seconds)

    def _label(self, type: str) -> str:
        if type not in self._types and len(self._types) < MAX_TYPES:
            self._types.add(type)
        return type if type in self._types else OTHER


@contextmanager
def serving(port: int, address: str) -> Iterator[None]:
    """Count what relays deliver, and serve it with all metrics of this process until the end of the block."""
    metrics = RelayMetrics(REGISTRY)
    try:
        server, thread = start_http_server(port, address, REGISTRY)
        server.RequestHandlerClass = bounded(server.RequestHandlerClass)
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
    finally:
        metrics.close()


def bounded(handler: Any) -> Any:
    """Return a request handler whose thread ends if the client is silent for `REQUEST_TIMEOUT`."""

    class BoundedHandler(handler):
        timeout = REQUEST_TIMEOUT

        def handle(self) -> None:
            with suppress(TimeoutError):
                super().handle()

    return BoundedHandler
