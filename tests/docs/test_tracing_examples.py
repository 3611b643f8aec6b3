"""The examples of the guide to tracing, run as a web process, a relay and a consumer."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

OUTBOX = """
import json
from types import SimpleNamespace
from unittest import mock

import django
from django.conf import settings

settings.configure(
    SECRET_KEY="only for tests",
    USE_TZ=True,
    INSTALLED_APPS=["django_outbox"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    OUTBOX={"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}},
)
django.setup()
from django.core.management import call_command
from django.db import transaction
from django_outbox import enqueue
from django_outbox.brokers.memory import published
from django_outbox.relay import Relay
from tests.docs.blocks import example

call_command("migrate", verbosity=0)

def properties():
    (message,) = published
    return SimpleNamespace(headers=dict(message.headers), type=message.type)
"""

OPENTELEMETRY = """
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter = InMemorySpanExporter()
provider = example("tracing", "set_up_tracing")(exporter)
with trace.get_tracer("shop").start_as_current_span("request"), transaction.atomic():
    enqueue("order.created", {"id": 7})
with Relay() as relay:
    relay.drain()
channel = mock.Mock()
example("tracing", "on_message")(channel, SimpleNamespace(delivery_tag=3), properties(), b'{"id": 7}')
channel.basic_ack.assert_called_once_with(3)
provider.shutdown()
spans = {span.context.span_id: span for span in exporter.get_finished_spans()}
print(json.dumps({
    "parents": {span.name: span.parent and spans[span.parent.span_id].name for span in spans.values()},
    "traces": len({span.context.trace_id for span in spans.values()}),
}))
"""


def run(code: str) -> object:
    ended = subprocess.run(
        [sys.executable, "-c", OUTBOX + code], capture_output=True, text=True, cwd=ROOT, check=False, timeout=240
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_opentelemetry_shows_the_request_the_delivery_and_the_consumer_in_one_trace():
    assert run(OPENTELEMETRY) == {
        "parents": {
            "request": None,
            "create order.created": "request",
            "publish order.created": "create order.created",
            "process order.created": "create order.created",
        },
        "traces": 1,
    }
