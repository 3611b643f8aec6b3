"""The relay with monitoring and tracing, compared with the relay alone."""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from statistics import median
from typing import Any

from django.db import connection
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from django_outbox.relay import Relay
from django_outbox.relay.limits import Limits
from django_outbox.stores.postgresql import PostgreSQLStore
from tests.benchmarks.measuring import BenchmarkError, measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.queues import Queues, topics
from tests.benchmarks.relays import Drained
from tests.benchmarks.report import Report
from tests.benchmarks.tables import restore, run_sql, save
from tests.benchmarks.workspace import rabbitmq_settings, require_broker, require_server

QUEUES = 4

INTERVAL = 2.0
"""Seconds between two reports, and between two scrapes. The default is 10 for reports, and Prometheus's 15 to 60."""

NEVER = 1e6
"""A factor of the interval of the reports with which a relay reports at its start and its end alone."""

TRACED = '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'

CASES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "reports": {"reports": True},
    "reports and scrapes": {"reports": True, "scraped": True},
    "traced messages": {"table": "traced"},
    "traced messages and spans": {"table": "traced", "tracing": True},
    "everything": {"table": "traced", "tracing": True, "reports": True, "scraped": True},
}
"""What is on, as arguments of `_measure`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        messages=(200_000, "Messages of a case."),
        repeats=(5, "Rounds; the median of each case counts."),
    )


def run(options: argparse.Namespace) -> Report:
    require_server()
    url = require_broker()
    exporter, provider = _export_spans()
    save("plain", options.messages, seed=options.seed, topics=topics(QUEUES))
    save("traced", options.messages, seed=options.seed, topics=topics(QUEUES))
    run_sql(f"UPDATE saved_traced SET headers = '{TRACED}'")
    with Queues(url, "quorum", QUEUES) as queues:
        found = measure_all(
            list(CASES) * options.repeats, lambda case: _measure(url, queues, options.messages, **CASES[case])
        )
    provider.force_flush()
    report = Report(
        title=f"A relay from {connection.display_name} to quorum queues, with its monitoring",
        columns=["on", "msg/s", "ratio", "relay µs", "ratio"],
    )
    rates = {case: median(each.rate for each in runs) for case, runs in found.items()}
    costs = {case: median(each.processor["relay"] / each.messages for each in runs) for case, runs in found.items()}
    for case, rate in rates.items():
        plain = "traced messages" if CASES[case].get("table") == "traced" else "nothing"
        ratio, cost = rate / rates[plain], costs[case] / costs[plain]
        report.rows.append([case, rate, ratio, costs[case] * 1e6, cost])
        name = case.replace(" ", "_")
        report.figures |= {f"{name}_rate": rate, f"{name}_ratio": ratio, f"{name}_cost_ratio": cost}
    report.figures["spans"] = exporter.count
    report.notes = [
        f"{options.messages:,} messages a case; median of {options.repeats}. A report and a scrape of all metrics by "
        f"another process every {INTERVAL:g} s, {exporter.count:,} spans in all. Spans are compared with the same "
        "messages without spans. µs: processor time of the relay for a message."
    ]
    return report


def _measure(
    url: str,
    queues: Queues,
    count: int,
    *,
    table: str = "plain",
    reports: bool = False,
    scraped: bool = False,
    tracing: bool = False,
) -> Drained:
    restore(table)
    queues.purge()
    limits = Limits(report_pace=INTERVAL / PostgreSQLStore.report_interval if reports else NEVER)
    with (
        rabbitmq_settings(url, queues.exchange, TRACING=tracing),
        _scraper() if scraped else nullcontext(),
        Relay(workers=2, batch_size=2000, max_messages=count, limits=limits) as relay,
    ):
        relay.publishers[0].prepare()
        before, start = time.process_time(), time.perf_counter()
        delivered = relay.run().processed
        seconds, used = time.perf_counter() - start, time.process_time() - before
    queues.expect(delivered)
    return Drained(delivered, seconds, {"relay": used})


class _CountingExporter(SpanExporter):
    """Drops spans, and counts them."""

    count = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


def _export_spans() -> tuple[_CountingExporter, TracerProvider]:
    """Configure OpenTelemetry as an application does, with spans that are exported in batches."""
    exporter, provider = _CountingExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter, provider


@contextmanager
def _scraper() -> Iterator[None]:
    """Scrape all metrics at intervals in another process, as a web process is scraped."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.scraper", str(INTERVAL)],
        env={**os.environ, "BENCHMARK_DATABASE": connection.settings_dict["NAME"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise BenchmarkError("The process that reads the metrics did not start; see above.")
        try:
            yield
        finally:
            process.stdin.close()
