"""The relay with monitoring and tracing, compared with the relay alone.

Its figures are reported, and read by another process, every 2 seconds. Spans are compared with the same messages
without spans.
"""

import argparse
from contextlib import nullcontext
from multiprocessing.connection import Connection
from typing import Any

from django.db import connection
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_outbox.monitoring.prometheus import expose
from django_outbox.relay import Relay
from django_outbox.relay.limits import Limits
from django_outbox.stores.postgresql import PostgreSQLStore
from tests.benchmarks.brokers.rabbitmq import QuorumQueues
from tests.benchmarks.measuring import Run, timed
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import restore, run_sql, save
from tests.benchmarks.workspace import outbox_settings, require_server
from tests.support.spawning import process, receive

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
"""What is on, as arguments of `measure`."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=200_000, repeats=5)


def run(options: argparse.Namespace) -> Report:
    require_server()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with QuorumQueues() as queues:
        for table in ("plain", "traced"):
            save(table, options.messages, seed=options.seed, topics=queues.topics)
        run_sql(f"UPDATE saved_traced SET headers = '{TRACED}'")

        def measure(
            table: str = "plain", *, reports: bool = False, scraped: bool = False, tracing: bool = False
        ) -> Run:
            restore(table)
            queues.purge()
            limits = Limits(report_pace=INTERVAL / PostgreSQLStore.report_interval if reports else NEVER)
            with (
                outbox_settings(queues.publisher(), TRACING=tracing),
                process("tests.benchmarks.monitoring.scrape") if scraped else nullcontext() as scraper,
                Relay(workers=2, max_messages=options.messages, limits=limits) as relay,
            ):
                if scraper:
                    receive(scraper[1])
                relay.publishers[0].prepare()
                run = timed(lambda: relay.run().processed, queues.process)
            queues.expect(run.messages)
            provider.force_flush()
            spans = len(exporter.get_finished_spans())
            exporter.clear()
            return Run(run.messages, run.seconds, {**run.figures, "spans": spans})

        return compare(
            f"A relay from {connection.display_name} to quorum queues, with its monitoring",
            list(CASES) * options.repeats,
            lambda case: measure(**CASES[case]),
            lambda case: "traced messages" if "table" in CASES[case] else "nothing",
        )


def scrape(pipe: Connection) -> None:
    """Read all metrics at intervals, as a web process does for Prometheus, until the other end is closed."""
    expose(["default"], "")
    pipe.send("ready")
    while not pipe.poll(INTERVAL):
        expose(["default"], "")
