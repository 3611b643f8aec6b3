"""Fixtures of the tracing tests: `pytest_plugins = ["tests.support.tracing_fixtures"]`."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_outbox import tracing
from django_outbox.utils.rates import Allowance
from tests.support.tracing import Switchable, recording


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter, _ = recording()
    exporter.clear()
    yield exporter
    exporter.clear()


@pytest.fixture
def processor(spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Iterator[Switchable]:
    """A span processor that raises what the test sets; the first such error is logged."""
    _, switchable = recording()
    monkeypatch.setattr(tracing, "_reports", Allowance(1, tracing.LOG_INTERVAL))
    yield switchable
    switchable.error = None
