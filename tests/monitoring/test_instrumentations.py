"""OpenTelemetry's own instrumentations next to the outbox, activated by `opentelemetry-instrument`."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connections

from tests.inbox.sources.base import Source
from tests.inbox.sources.kafka import KafkaSource
from tests.inbox.sources.rabbitmq import RabbitMQSource
from tests.inbox.sources.redis import RedisSource
from tests.support.instrumented import RUN, USING

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, databases=["default", USING])]

RABBITMQ = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "OPTIONS": {"url": settings.AMQP_URL, "exchange": ""},
}
REDIS = {"BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher", "OPTIONS": {"url": settings.REDIS_URL}}


def kafka(source: Source) -> dict[str, Any]:
    config = {"bootstrap.servers": source.options["config"]["bootstrap.servers"]}
    return {"BACKEND": "django_outbox.brokers.kafka.KafkaPublisher", "OPTIONS": {"config": config}}


@pytest.mark.parametrize(
    ("make_source", "publisher"),
    [
        pytest.param(partial(RabbitMQSource, "quorum"), lambda _: RABBITMQ, id="rabbitmq"),
        pytest.param(RedisSource, lambda _: REDIS, id="redis"),
        pytest.param(KafkaSource, kafka, id="kafka"),
    ],
)
def test_a_request_its_messages_and_their_handlers_are_one_trace(make_source: Any, publisher: Any):
    source = make_source()
    outbox = {
        "PUBLISHERS": {
            "default": publisher(source),
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


def run(outbox: dict[str, Any], topic: str) -> list[dict[str, Any]]:
    """Run the shop, and return its spans."""
    program = Path(sys.executable).with_name("opentelemetry-instrument")
    name = connections[USING].settings_dict["NAME"]
    quiet = {f"OTEL_{kind}_EXPORTER": "none" for kind in ("TRACES", "METRICS", "LOGS")}
    ended = subprocess.run(
        [program, sys.executable, "-c", RUN, name, json.dumps(outbox), topic],
        env={
            **os.environ,
            **quiet,
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
