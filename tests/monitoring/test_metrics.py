"""The gauges, as Prometheus and OpenTelemetry show them."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from django_outbox.monitoring import readings
from django_outbox.monitoring.gauges import GAUGES
from django_outbox.monitoring.opentelemetry import READING_SECONDS, _Readings, observe_outbox
from django_outbox.monitoring.prometheus import COUNTERS, SUFFIXES, OutboxCollector
from django_outbox.monitoring.readings import Reading
from tests.conftest import ALIASES, LOCKING
from tests.support.figures import FORGOTTEN, SECRET, TROUBLED, Unreachable, troubled_status
from tests.support.project_files import ROOT

pytest_plugins = ["tests.support.monitoring_fixtures"]
pytestmark = pytest.mark.usefixtures("fresh_figures")

Samples = dict[tuple[str, ...], float]
"""Values by the name of the metric and the values of its labels, in the order of their names."""

OF_DEFAULT = {
    "due_messages": 100_000,
    "oldest_due_seconds": 2820.5,
    "blocked_messages": 57,
    "retrying_messages": 61,
    "delayed_messages": 12,
    "held_messages": 54,
    "failed_messages": 1138,
    "blocking_messages": 7,
    "blocked_keys": 2,
    "truncated_counts": 1,
    "last_minute_processed_messages": 1204,
    "last_minute_failed_messages": 3,
    "rate_limit": 50,
    "outage_seconds": 3000,
    "relays": 2,
    "publisher_configured": 1,
    "publisher_paused": 1,
    "paused_types": 1,
}
"""The gauges of the publisher `default` in `troubled_status`."""


def scrape(collector: OutboxCollector) -> Samples:
    registry = CollectorRegistry()
    registry.register(collector)
    return {
        (sample.name.removeprefix("django_outbox_"), *in_order(sample.labels)): sample.value
        for family in parse_text(generate_latest(registry).decode())
        for sample in family.samples
    }


def export(reader: InMemoryMetricReader) -> tuple[Samples, dict[str, str]]:
    """Return the exported values, and the unit of each metric."""
    samples, units = {}, {}
    data: Any = reader.get_metrics_data()
    for metric in (
        metric for resource in data.resource_metrics for scope in resource.scope_metrics for metric in scope.metrics
    ):
        units[metric.name] = metric.unit
        for point in metric.data.data_points:
            name = metric.name.removeprefix("django_outbox.")
            samples[(name, *in_order(point.attributes))] = point.value
    return samples, units


def in_order(labels: Any) -> list[str]:
    return [value for _, value in sorted(labels.items())]


@pytest.fixture
def reader() -> Iterator[InMemoryMetricReader]:
    """A reader of the metrics of the database `default`."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe_outbox(meter_provider=provider)
    yield reader
    provider.shutdown()


@pytest.mark.usefixtures("troubled")
def test_every_figure_of_a_publisher_is_a_gauge():
    samples = scrape(OutboxCollector())
    assert {name: samples[name, "default", "default"] for name in OF_DEFAULT} == OF_DEFAULT
    assert samples["publisher_configured", "default", FORGOTTEN.alias] == 0
    assert samples["outage_seconds", "default", FORGOTTEN.alias] == 0


@pytest.mark.usefixtures("troubled")
def test_the_state_of_the_breaker_is_1_for_one_state():
    samples = scrape(OutboxCollector())
    states = {
        labels[-1]: value for labels, value in samples.items() if labels[:3] == ("breaker_state", "default", "default")
    }
    assert states == {"closed": 0, "half-open": 1, "open": 0, "crashed": 0}
    assert not any(value for labels, value in samples.items() if labels[:3] == ("breaker_state", "default", "old"))


@pytest.mark.usefixtures("troubled")
def test_each_verdict_is_a_gauge_of_its_level_and_occurs_once():
    samples = scrape(OutboxCollector())
    assert {labels[1:]: value for labels, value in samples.items() if labels[0] == "verdict"} == {
        ("not_delivering", "", "default", "default"): 2,
        ("paused", "", "default", "default"): 1,
        ("blocked", "", "default", "default"): 1,
        ("not_receiving", "orders", "default", ""): 1,
        ("failed", "", "default", ""): 1,
    }
    assert samples["level", "default"] == 2


@pytest.mark.usefixtures("troubled")
def test_every_figure_of_a_consumer_is_a_gauge():
    samples = scrape(OutboxCollector())
    assert samples["inboxes", "orders", "default"] == 2
    counts = {labels[3]: value for labels, value in samples.items() if labels[0] == "last_minute_inbox_messages"}
    assert counts == {"received": 1300, "stored": 1200, "known": 5, "invalid": 70, "dropped": 20, "rejected": 10}
    states = {labels[3]: value for labels, value in samples.items() if labels[0] == "consumer_state"}
    assert states == {"crashed": 0, "unavailable": 1, "paused": 0, "reading": 0, "not_read": 0}


def test_no_sample_occurs_twice():
    """Prometheus refuses a scrape with duplicates."""
    for gauge in GAUGES:
        samples = [labels for labels, _ in gauge.samples([Reading("default", troubled_status())])]
        assert len(set(samples)) == len(samples), gauge.name


def test_nothing_is_overdue_if_nothing_is_due(monkeypatch: pytest.MonkeyPatch):
    idle = replace(TROUBLED, oldest_due=None, outage_since=None)
    monkeypatch.setattr(readings, "status", lambda using: troubled_status(using, publishers=(idle,)))
    samples = scrape(OutboxCollector())
    assert samples["oldest_due_seconds", "default", "default"] == 0
    assert samples["outage_seconds", "default", "default"] == 0


@pytest.mark.usefixtures("troubled")
@pytest.mark.parametrize("face", ["prometheus", "opentelemetry"])
def test_no_label_names_a_key_a_relay_a_type_or_an_operator(face: str, reader: InMemoryMetricReader):
    samples = scrape(OutboxCollector()) if face == "prometheus" else export(reader)[0]
    assert len(samples) > 30
    assert not [labels for labels in samples if SECRET in " ".join(labels)]


@pytest.mark.parametrize("gauge", GAUGES, ids=lambda gauge: gauge.name)
def test_a_gauge_is_named_by_the_conventions_of_prometheus(gauge: Any):
    assert gauge.name == gauge.name.lower()
    assert not gauge.name.endswith(("_total", "_count", "_sum", "_bucket", "_info", "_seconds", "_bytes"))
    assert gauge.unit in SUFFIXES
    assert gauge.labels[0] == "database"
    assert set(gauge.labels) <= {"database", "publisher", "consumer", "code", "result", "state"}
    assert gauge.help.endswith(".")


def test_every_metric_is_in_the_reference_with_its_labels_and_no_other():
    page = (ROOT / "docs" / "reference" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(django_outbox_\w+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    documented, of_relays = rows[: len(GAUGES)], rows[len(GAUGES) :]
    assert {name.removeprefix("django_outbox_"): labels for name, labels, _ in of_relays} == {
        name: ", ".join(f"`{label}`" for label in labels) for name, (labels, _) in COUNTERS.items()
    }
    assert documented == [
        (
            f"django_outbox_{gauge.name}{SUFFIXES[gauge.unit]}",
            ", ".join(f"`{label}`" for label in gauge.labels),
            gauge.help.removesuffix("."),
        )
        for gauge in GAUGES
    ]


def test_registering_the_collector_queries_no_database_and_claims_its_names():
    """The global registry of prometheus_client describes each collector when it is registered."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(OutboxCollector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        registry.register(OutboxCollector())


@pytest.mark.django_db(databases=ALIASES)
def test_the_collector_reads_the_databases_that_it_was_given():
    samples = scrape(OutboxCollector(["postgresql", "mariadb"]))
    assert {labels[1] for labels in samples if labels[0] == "up"} == {"postgresql", "mariadb"}


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_a_reading_leaves_the_connection_as_it_was(using: str):
    """A thread of an exporter ends without closing its connections."""
    connection = connections[using]
    connection.close()
    scrape(OutboxCollector([using]))
    assert connection.connection is None
    connection.ensure_connection()
    before = connection.connection
    scrape(OutboxCollector([using]))
    assert connection.connection is before


MULTIPROCESS = """
import os
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["NAME"]}},
    OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}},
)
django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from django_outbox.monitoring.prometheus import COUNTERS, OutboxCollector
Counter("orders", "Orders.").inc()
registry = CollectorRegistry()
MultiProcessCollector(registry)
registry.register(OutboxCollector())
print(generate_latest(registry).decode())
"""


def test_the_collector_works_next_to_the_metrics_of_several_processes(tmp_path: Any):
    folder = tmp_path / "metrics"
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", MULTIPROCESS],
        env={"PROMETHEUS_MULTIPROC_DIR": str(folder), "NAME": str(tmp_path / "db.sqlite3"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert "\norders_total 1.0\n" in ended.stdout
    assert '\ndjango_outbox_up{database="default"} 1.0\n' in ended.stdout


@pytest.mark.usefixtures("troubled")
def test_opentelemetry_has_the_same_values_as_prometheus(reader: InMemoryMetricReader):
    samples, units = export(reader)
    scraped = scrape(OutboxCollector())
    assert {(name.removesuffix("_seconds"), *labels): value for (name, *labels), value in scraped.items()} == samples
    assert {name for name, unit in units.items() if unit} == {"django_outbox.oldest_due", "django_outbox.outage"}
    assert set(units.values()) == {"", "s"}


@pytest.mark.django_db
def test_opentelemetry_reads_the_database_at_each_export(reader: InMemoryMetricReader):
    assert export(reader)[0]["up", "default"] == 1


@pytest.mark.django_db(databases=ALIASES, transaction=True)
@pytest.mark.parametrize("using", LOCKING)
def test_opentelemetry_exports_that_a_database_is_unavailable(using: str, unreachable: Unreachable):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    observe_outbox(["default", using], meter_provider=provider)
    with unreachable(using):
        samples, _ = export(reader)
    provider.shutdown()
    assert (samples["up", "default"], samples["up", using]) == (1, 0)
    assert samples["verdict", "database_unavailable", "", using, ""] == 2


@pytest.mark.usefixtures("troubled")
def test_one_export_reads_a_database_once():
    """Each gauge has a callback; an unavailable database may take seconds to refuse each."""
    clock = [0.0]
    read: list[float] = []

    def note() -> list[Reading]:
        read.append(clock[0])
        return []

    shared = _Readings(note, lambda: clock[0])
    for now in (0, READING_SECONDS / 2, READING_SECONDS):
        clock[0] = now
        shared.get()
    assert len(read) == 1
    clock[0] = READING_SECONDS + 0.1
    shared.get()
    assert len(read) == 2
