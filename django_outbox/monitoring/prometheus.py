"""The figures for Prometheus. Needs `prometheus_client`."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from django_outbox.monitoring.gauges import GAUGES, Gauge
from django_outbox.monitoring.readings import read_all

__all__ = ["OutboxCollector"]


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
    """Return the figures as text, and its content type.

    Args:
        databases: the database aliases.
        accept: the `Accept` header of the scrape.
    """
    registry = CollectorRegistry()
    registry.register(OutboxCollector(databases))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _family(gauge: Gauge) -> GaugeMetricFamily:
    name = f"django_outbox_{gauge.name}{'_seconds' if gauge.unit == 's' else ''}"
    return GaugeMetricFamily(name, gauge.help, labels=gauge.labels)
