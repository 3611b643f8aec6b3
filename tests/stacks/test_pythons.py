"""Versions of Python that the other tests may not run with, if they are on the PATH: threads, SQLite and RabbitMQ."""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

from tests.stacks.support import Project
from tests.support.databases import Database
from tests.support.shop import PATIENCE, broker_channel
from tests.support.waiting import eventually

PACKAGES = ("Django==6.1.3", "psycopg[binary]==3.3.9", "pika==1.4.4")

HANDLERS = """
from django_outbox import enqueue
from django_outbox.handlers import handler


@handler("order.created")
def note(payload, message):
    enqueue("order.noted", payload, key=payload["number"], publisher="default")
"""

PLACE = """
from concurrent.futures import ThreadPoolExecutor
from django.db import connections
from django.test import RequestFactory
from mysite import views

def place(number):
    for _ in range(100):
        views.place_order(RequestFactory().get("/"), str(number))
    connections.close_all()

with ThreadPoolExecutor(4) as pool:
    list(pool.map(place, range(4)))
"""


@pytest.fixture(params=["python3.14", "python3.14t", "python3.15", "python3.15t"])
def python(request: pytest.FixtureRequest, virtualenv: Callable[..., Path]) -> Path:
    program = shutil.which(request.param)
    if program is None:
        pytest.skip(f"{request.param} is not on the PATH")
    return virtualenv(*PACKAGES, python=program)


def test_threads_enqueue_and_a_relay_delivers_to_rabbitmq(python: Path, tmp_path: Path):
    queue = f"outbox-test-{uuid.uuid4().hex[:8]}"
    with Database("postgresql") as database, broker_channel() as channel:
        project = Project(tmp_path / "project", python, database)
        project.configure(f"""
OUTBOX["PUBLISHERS"]["default"] = {{
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "OPTIONS": {{"url": {settings.AMQP_URL!r}, "exchange": {queue!r}}},
}}""")
        project.migrate()
        channel.queue_declare(queue)
        channel.exchange_declare(queue, "fanout")
        channel.queue_bind(queue, queue)
        try:
            relay = project.start("django-admin", "run_outbox", "--workers=4")
            relay.until_it_says("connected to RabbitMQ")
            project.execute(PLACE)
            eventually(lambda: project.count("processed_at IS NOT NULL") == 400, seconds=PATIENCE)
            relay.stop()
            bodies = [body for _, _, body in iter(lambda: channel.basic_get(queue, auto_ack=True), (None, None, None))]
        finally:
            project.stop()
            channel.queue_delete(queue)
            channel.exchange_delete(queue)
    assert len(bodies) == 400
    assert "Traceback" not in relay.output
    assert "Warning" not in relay.output


def test_handlers_run_on_sqlite(python: Path, tmp_path: Path):
    project = Project(tmp_path / "project", python)
    project.write("mysite/handlers.py", HANDLERS)
    project.configure("""
OUTBOX["PUBLISHERS"]["handlers"] = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}
OUTBOX["ROUTES"] = {"order.created": ["handlers"]}""")
    project.migrate()
    project.place_orders(50)
    # What the handlers enqueued follows.
    for _ in range(2):
        assert "50 delivered, 0 will be retried, 0 failed." in project.manage("run_outbox", "--drain")
