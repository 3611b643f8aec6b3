"""A shop in one process, which `opentelemetry-instrument` runs: its view enqueues, a relay and an inbox do the rest.

The message comes back through a consumer, and its handler enqueues another one. `RUN` prints the spans as JSON.
"""

import json
import sys
from typing import Any

from django.conf import settings
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_outbox import enqueue
from django_outbox.handlers import handler
from django_outbox.inbox.inbox import Inbox
from django_outbox.relay import Relay
from django_outbox.utils.threads import Threads
from tests.support.waiting import eventually

USING = "postgresql"

RUN = "import django; django.setup(); from tests.support import instrumented; instrumented.main()"
"""The arguments are the name of the database, OUTBOX as JSON, and the topic for the publisher `default`."""


def order(request: HttpRequest) -> HttpResponse:
    with transaction.atomic(using=USING):
        enqueue("order.created", {"id": 7}, topic=sys.argv[3], using=USING)
    return HttpResponse(status=201)


urlpatterns = [path("order/", order)]


def note(event: Any, message: Any) -> None:
    with connections[USING].cursor() as cursor:
        cursor.execute("SELECT 'in the handler'")
    enqueue("order.noted", {}, publisher="memory", using=USING)


def receive() -> None:
    inbox, threads = Inbox(using=USING), Threads()
    threads.start(inbox.run, name="inbox")
    eventually(lambda: inbox.tally.stored, "the message is stored", seconds=60)
    inbox.stop()
    threads.wait()


def main() -> None:
    _, settings.DATABASES[USING]["NAME"], outbox, topic = sys.argv
    settings.OUTBOX = json.loads(outbox)
    settings.ROOT_URLCONF = __name__
    handler("order.created")(note)
    settings.ALLOWED_HOSTS = ["*"]
    exporter = InMemorySpanExporter()
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    assert Client().post("/order/").status_code == 201
    with Relay(using=USING) as relay:
        relay.drain()
        receive()
        for _ in range(2):
            relay.drain()
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans}
    found = [
        {
            "name": span.name,
            "parent": span.parent and names[span.parent.span_id],
            "trace": span.context.trace_id,
            "statement": (span.attributes or {}).get("db.statement"),
        }
        for span in spans
    ]
    print(json.dumps(found).replace(topic, "topic"))  # noqa: T201
