"""OpenTelemetry's own instrumentations next to the outbox, activated by `opentelemetry-instrument`."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings
from opentelemetry import trace
from opentelemetry.instrumentation.logging import LoggingInstrumentor
from opentelemetry.instrumentation.psycopg import PsycopgInstrumentor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_outbox import enqueue
from django_outbox.management.service import shown_log
from django_outbox.relay import Relay
from tests.inbox.sources.rabbitmq import RabbitMQSource
from tests.support.instrumented import RUN, USING

ROOT = Path(__file__).resolve().parent.parent.parent

pytest_plugins = ["tests.support.celery.app_fixtures", "tests.support.tracing_fixtures"]
pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", USING])]

tracer = trace.get_tracer("tests")

QUIET = {f"OTEL_{kind}_EXPORTER": "none" for kind in ("TRACES", "METRICS", "LOGS")}

RABBITMQ = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "OPTIONS": {"url": settings.AMQP_URL, "exchange": ""},
}


@pytest.mark.slow
def test_a_request_its_messages_and_their_handlers_are_one_trace():
    source = RabbitMQSource("quorum")
    outbox = {
        "PUBLISHERS": {
            "default": RABBITMQ,
            "handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"},
            "memory": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"},
        },
        "CONSUMERS": {"billing": {"BACKEND": source.backend, "OPTIONS": source.options}},
    }
    try:
        spans = run(outbox, source.name)
    finally:
        source.close()
    assert len({span["trace"] for span in spans}) == 1, [span for span in spans if span["parent"] is None]
    statements = [span for span in spans if span["statement"]]
    assert sorted((span["name"], span["parent"]) for span in spans if span not in statements) == [
        ("POST order/", None),
        ("create order.noted", "process order.created"),
        ("create topic", "POST order/"),
        ("process order.created", "create topic"),
        ("publish order.noted", "create order.noted"),
        # By the publishers `default` and `handlers`.
        ("publish topic", "create topic"),
        ("publish topic", "create topic"),
    ]
    parents = {"POST order/", "create topic", "process order.created", "create order.noted"}
    assert {span["parent"] for span in statements} == parents
    handled = [span["statement"] for span in statements if span["parent"] == "process order.created"]
    assert handled[0] == "SELECT 'in the handler'"


@pytest.fixture
def instrument() -> Iterator[Callable[..., None]]:
    """Activate an instrumentation in this process until the end of the test."""
    active: list[Any] = []

    def activate(instrumentor: Any, **options: Any) -> None:
        instrumentor.instrument(**options)
        active.append(instrumentor)

    yield activate
    for instrumentor in active:
        instrumentor.uninstrument()
    connections[USING].close()


def test_a_relay_writes_its_log_if_its_only_handler_exports_it(
    instrument: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(logging.root, "handlers", [])
    instrument(LoggingInstrumentor())
    assert logging.root.handlers
    with shown_log(1):
        logging.getLogger("django_outbox").info("Relay started")
    assert "INFO Relay started" in capsys.readouterr().err


def test_the_statements_of_a_command_are_not_traces(instrument: Callable[..., None], spans: InMemorySpanExporter):
    connections[USING].close()
    instrument(PsycopgInstrumentor())
    call_command("run_outbox", "--drain", "--database", USING)
    assert spans.get_finished_spans() == ()


@pytest.mark.parametrize("source", ["table", "snapshot"])
def test_statements_with_comments_deliver_as_others(source: str, instrument: Callable[..., None]):
    connections[USING].close()
    instrument(PsycopgInstrumentor(), enable_commenter=True)
    enqueue_and_deliver({"BACKEND": "django_outbox.brokers.memory.MemoryPublisher", "SOURCE": source})


def enqueue_and_deliver(publisher: dict[str, Any]) -> None:
    with override_settings(OUTBOX={"PUBLISHERS": {"default": publisher}}):
        with tracer.start_as_current_span("request"), transaction.atomic(using=USING):
            enqueue("order.created", {"text": "50% %s"}, key="order-7", lock_key=True, using=USING)
        with Relay(using=USING) as relay:
            assert relay.drain().processed == 1


def run(outbox: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    name = connections[USING].settings_dict["NAME"]
    ended = subprocess.run(
        [program, sys.executable, "-c", RUN, name, json.dumps(outbox), topic],
        env={
            **os.environ,
            **QUIET,
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    spans: list[dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return spans
