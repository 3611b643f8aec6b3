"""`opentelemetry-instrument` around gunicorn, the relay, the inbox and a worker of Celery, with every instrumentation.

`opentelemetry-bootstrap` names the instrumentations. Each process sends its spans over HTTP, as to a collector.
"""

import json
import re
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import redis
from django.conf import settings

from tests.stacks.support import CELERY, Project, get
from tests.support.ports import free_port
from tests.support.shop import PATIENCE, Process, broker_channel
from tests.support.waiting import eventually

PACKAGES = (
    "Django==6.1.3",
    "psycopg[binary]==3.3.9",
    "pika==1.4.4",
    "redis==8.1.0",
    "celery==5.7.0",
    "confluent-kafka==2.16.1",
    "gunicorn==27.0.1",
    "opentelemetry-distro==0.66b1",
    "opentelemetry-exporter-otlp-json-http==0.66b1",
    *(
        f"opentelemetry-instrumentation-{name}==0.66b1"
        for name in (
            *("asgi", "asyncio", "celery", "click", "confluent-kafka", "dbapi", "django", "exceptions", "logging"),
            *("pika", "psycopg", "redis", "sqlite3", "threading", "urllib", "urllib3", "wsgi"),
        )
    ),
)
POSTGRESQL = True

HANDLERS = """
from django_outbox import enqueue
from django_outbox.handlers import handler

from .models import Order


@handler("order.created")
def note(payload, message):
    assert Order.objects.filter(number=payload["number"]).exists()
    enqueue("order.noted", {})
"""

CHECKOUT = """
from django.db import transaction

from .celery import send_receipt


def check_out(request, number):
    with transaction.atomic():
        send_receipt.delay(number)
        return views.place_order(request, number)


urlpatterns.append(path("checkout/<str:number>/", check_out))
"""

PLACE = """
import django
django.setup()
from django.test import RequestFactory
from mysite import views
from opentelemetry import trace

with trace.get_tracer("shop").start_as_current_span("order"):
    views.place_order(RequestFactory().get("/"), "1")
"""

EXPECTED = sorted(
    [
        ("web", "GET checkout/<str:number>/", ""),
        ("web", "apply_async/send_receipt", "GET checkout/<str:number>/"),
        ("relay", "publish shop-celery", "apply_async/send_receipt"),
        ("worker", "run/send_receipt", "apply_async/send_receipt"),
        ("web", "create order.created", "GET checkout/<str:number>/"),
        # To RabbitMQ and to Redis, and what came back from each to its handler.
        ("relay", "publish shop:order.created", "create order.created"),
        ("relay", "publish shop", "create order.created"),
        *[("relay", f"publish {topic}", "create order.created") for topic in ("order.created", "shop")],
        *[("relay", "process order.created", "create order.created")] * 2,
        *[("relay", "create order.noted", "process order.created")] * 2,
        *[("relay", "publish order.noted", "create order.noted")] * 2,
    ]
)
"""The service, the name and the parent of each span of a trace, without statements."""


@dataclass(frozen=True)
class Span:
    id: str
    trace: str
    parent: str
    name: str
    service: str
    is_statement: bool


class Collector:
    """Receives spans, metrics and logs, and keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                for resource in body.get("resourceSpans", ()):
                    spans.extend(read_spans(resource))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"


def read_spans(resource: dict[str, Any]) -> Iterator[Span]:
    attributes = {each["key"]: each["value"] for each in resource["resource"]["attributes"]}
    service = attributes["service.name"]["stringValue"]
    for scope in resource["scopeSpans"]:
        for span in scope["spans"]:
            keys = {each["key"] for each in span.get("attributes", ())}
            name, is_statement = re.sub(r"outbox-test-\w{8}", "shop", span["name"]), "db.statement" in keys
            yield Span(span["spanId"], span["traceId"], span.get("parentSpanId", ""), name, service, is_statement)


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


@pytest.fixture
def shop(project: Project, collector: Collector) -> Iterator[Project]:
    """A project that sends orders over RabbitMQ and Redis to itself, and calls a task."""
    name = f"outbox-test-{uuid.uuid4().hex[:8]}"
    project.environment |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_TRACES_EXPORTER": "otlp_json_http",
        "OTEL_METRICS_EXPORTER": "otlp_json_http",
        "OTEL_LOGS_EXPORTER": "otlp_json_http",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
    }
    project.write("mysite/celery.py", CELERY)
    project.write("mysite/__init__.py", "from .celery import app")
    project.write("mysite/handlers.py", HANDLERS)
    project.append("mysite/urls.py", CHECKOUT)
    project.configure(f"""
INSTALLED_APPS += ["django_outbox.inbox"]
CELERY_BROKER_URL = {settings.AMQP_URL!r}
CELERY_TASK_DEFAULT_QUEUE = "{name}-celery"
rabbitmq, redis = {{"url": {settings.AMQP_URL!r}}}, {{"url": {settings.REDIS_URL!r}, "stream": {name!r}}}
OUTBOX = {{
    "PUBLISHERS": {{
        **OUTBOX["PUBLISHERS"],
        "rabbitmq": {{
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
            "OPTIONS": {{**rabbitmq, "exchange": {name!r}}},
        }},
        "redis": {{"BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher", "OPTIONS": redis}},
        "celery": {{
            "BACKEND": "django_outbox.brokers.celery.CeleryPublisher", "OPTIONS": {{"app": "mysite.celery:app"}}
        }},
        **dict.fromkeys(["billing", "search"], {{"BACKEND": "django_outbox.handlers.HandlersPublisher"}}),
    }},
    "ROUTES": {{"order.created": ["rabbitmq", "redis"]}},
    "CONSUMERS": {{
        "billing": {{
            "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQConsumer",
            "OPTIONS": {{**rabbitmq, "queue": {name!r}, "publisher": "billing"}},
        }},
        "search": {{
            "BACKEND": "django_outbox.brokers.redis.RedisStreamsConsumer",
            "OPTIONS": {{**redis, "group": "search", "publisher": "search"}},
        }},
    }},
}}""")
    project.migrate()
    with broker_channel() as channel:
        channel.exchange_declare(name, "topic")
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, name, "#")
    yield project
    project.stop()
    with broker_channel() as channel:
        for queue in (name, f"{name}-celery"):
            channel.queue_delete(queue)
        for exchange in (name, f"{name}-celery"):
            channel.exchange_delete(exchange)
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(name)


def start(project: Project, service: str, *command: str) -> Process:
    return project.start("opentelemetry-instrument", f"--service_name={service}", *command)


def test_each_request_is_one_trace_and_nothing_else_is(shop: Project, collector: Collector):
    port = free_port()
    server = start(shop, "web", "gunicorn", "mysite.wsgi", f"--bind=127.0.0.1:{port}", "--workers=2", "--preload")
    relay = start(shop, "relay", "django-admin", "run_outbox")
    inbox = start(shop, "inbox", "django-admin", "run_inbox")
    worker = start(shop, "worker", "celery", "-A", "mysite", "worker", "--concurrency=1", "--loglevel=info")
    for process in (relay, inbox):
        process.until_it_says("started")
    worker.until_it_says("ready")
    time.sleep(10)
    assert collector.spans == []

    def check_out(number: int) -> int:
        return int(json.loads(get(f"http://127.0.0.1:{port}/checkout/{number}/"))["process"])

    with ThreadPoolExecutor(4) as pool:
        processes = set(pool.map(check_out, range(20)))
    assert len(processes) == 2
    eventually(lambda: shop.count("processed_at IS NOT NULL") == 20 * 7, seconds=PATIENCE)
    for process in (worker, inbox, relay, server):
        process.stop()
        assert "Traceback" not in process.output
    names = {span.id: span.name for span in collector.spans}
    traces: dict[str, list[tuple[str, str, str]]] = {}
    for span in collector.spans:
        found = traces.setdefault(span.trace, [])
        if not span.is_statement:
            found.append((span.service, span.name, names[span.parent] if span.parent else ""))
    assert len(traces) == 20
    for trace in traces.values():
        assert sorted(trace) == EXPECTED


def test_a_collector_that_does_not_answer_delays_the_end_of_the_process_only(shop: Project):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shop.environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
        relay = start(shop, "relay", "django-admin", "run_outbox")
        relay.until_it_says("started")
        start(shop, "web", "python", "-c", PLACE).wait()
        eventually(lambda: shop.count("processed_at IS NOT NULL") == 2, seconds=PATIENCE)
        began = time.monotonic()
        relay.send(signal.SIGTERM)
        relay.until_it_says("Relay ended")
        assert time.monotonic() - began < 5
        assert relay.wait() == 0
        assert time.monotonic() - began < 30
