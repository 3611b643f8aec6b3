"""The gauges, as Prometheus scrapes them."""

import re
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse_text

from django_outbox.monitoring import readings
from django_outbox.monitoring.prometheus import GAUGES, OutboxCollector
from django_outbox.monitoring.readings import Reading
from tests.conftest import ALIASES, LOCKING
from tests.support.figures import FORGOTTEN, TROUBLED, troubled_status
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
    "rate_limit": 50,
    "outage_seconds": 3000,
    "relays": 2,
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


def in_order(labels: Any) -> list[str]:
    return [value for _, value in sorted(labels.items())]


@pytest.mark.usefixtures("troubled")
def test_every_figure_of_a_publisher_is_a_gauge():
    samples = scrape(OutboxCollector())
    assert {name: samples[name, "default", "default"] for name in OF_DEFAULT} == OF_DEFAULT
    assert samples["outage_seconds", "default", FORGOTTEN.alias] == 0


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


def test_no_sample_occurs_twice():
    """Prometheus refuses a scrape with duplicates."""
    for gauge in GAUGES:
        samples = [labels for labels, _ in gauge.read(Reading("default", troubled_status()))]
        assert len(set(samples)) == len(samples), gauge.name


def test_nothing_is_overdue_if_nothing_is_due(monkeypatch: pytest.MonkeyPatch):
    idle = replace(TROUBLED, oldest_due=None, outage=None)
    monkeypatch.setattr(readings, "status", lambda using: troubled_status(using, publishers=(idle,)))
    samples = scrape(OutboxCollector())
    assert samples["oldest_due_seconds", "default", "default"] == 0
    assert samples["outage_seconds", "default", "default"] == 0


def test_the_labels_of_the_gauges_are_bounded():
    assert {gauge.labels[0] for gauge in GAUGES} == {"database"}
    labels = {label for gauge in GAUGES for label in gauge.labels}
    assert labels == {"database", "publisher", "consumer", "code", "result"}


def test_every_metric_is_in_the_reference_with_its_labels_and_no_other():
    page = (ROOT / "docs" / "reference" / "monitoring.md").read_text()
    rows = re.findall(r"^\| `(django_outbox_\w+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert rows == [
        (
            f"django_outbox_{gauge.name}",
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
