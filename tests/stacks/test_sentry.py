"""Sentry's SDK with its integrations of Django, logging and Celery."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings

from tests.stacks.support import CELERY, Project
from tests.support.shop import PATIENCE, broker_channel
from tests.support.waiting import eventually

PACKAGES = (
    "Django==6.1.3",
    "psycopg[binary]==3.3.9",
    "sentry-sdk==2.75.0",
    "celery==5.7.0",
    "pika==1.4.4",
)
POSTGRESQL = True

# What would be sent to Sentry is in a file: an event or a transaction a line.
SENTRY = """
import json, sentry_sdk
from sentry_sdk.transport import Transport

class File(Transport):
    def capture_envelope(self, envelope):
        with open("sentry.jsonl", "a") as file:
            for item in envelope.items:
                if item.type in ("event", "transaction"):
                    file.write(json.dumps({"item": item.type, **json.loads(item.get_bytes())}) + "\\n")

sentry_sdk.init(
    dsn="http://public@127.0.0.1:9/1", transport=File, traces_sample_rate=1.0, include_local_variables=False
)
"""

HANDLER = """
from django_outbox.handlers import handler


@handler("order.created")
def refuse(payload, message):
    raise ValueError("the shop is closed")
"""

REQUEST = """
from django.core.wsgi import get_wsgi_application
from django.test import RequestFactory
from mysite.celery import app, send_receipt
from mysite import urls, views
from django.urls import path
from django.db import transaction
from django.http import HttpResponse

def receipt(request):
    with transaction.atomic():
        send_receipt.delay("7")
    return HttpResponse()

urls.urlpatterns.append(path("receipt/", receipt))
headers = {"sentry-trace": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"}
request = RequestFactory().get("/receipt/", headers=headers)
# Sentry traces the handler of WSGI, which Django's test client does not use.
get_wsgi_application()(request.environ, lambda *arguments: None).close()
"""


@pytest.fixture
def sent(project: Project) -> Any:
    """A function that returns what was sent to Sentry, of one kind."""
    project.write("mysite/handlers.py", HANDLER)
    project.configure(SENTRY)
    project.configure('OUTBOX["PUBLISHERS"]["default"] = {"BACKEND": "django_outbox.handlers.HandlersPublisher"}')

    def read(kind: str) -> list[dict[str, Any]]:
        file = project.folder / "sentry.jsonl"
        items = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [item for item in items if item["item"] == kind]

    return read


def test_a_new_cause_of_failures_is_one_issue_without_content(project: Project, sent: Any):
    project.configure('OUTBOX["PUBLISHERS"]["default"]["RETRY"] = {"MAX_ATTEMPTS": 1}')
    project.migrate()
    project.place_orders(20)
    project.manage("run_outbox", "--drain")
    assert project.count("failed_at IS NOT NULL") == 20
    events = sent("event")
    # Sentry groups events by the message without its arguments.
    assert len({event["logentry"]["message"] for event in events}) == 1
    event = events[0]
    assert event["logger"] == "django_outbox"
    assert event["extra"]["event"] == "relay.messages_failed"
    assert event["exception"]["values"][-1]["type"] == "ValueError"
    assert '"number"' not in json.dumps(event)


def test_retries_and_outages_are_no_issues(project: Project, sent: Any):
    project.configure("""
OUTBOX["PUBLISHERS"]["rabbitmq"] = {
    "BACKEND": "django_outbox.brokers.rabbitmq.RabbitMQPublisher",
    "OPTIONS": {"url": "amqp://127.0.0.1:9/", "exchange": "shop"},
}
OUTBOX["ROUTES"] = {"order.created": ["default", "rabbitmq"]}
""")
    project.migrate()
    project.place_orders(2)
    project.manage("run_outbox", "--drain", code=1)
    assert project.count("attempts = 1 AND available_at IS NOT NULL") == 2
    # pika logs each failed connection as an error.
    loggers = {event["logger"] for event in sent("event")}
    assert loggers
    assert all(name.startswith("pika.") for name in loggers)
    (project.folder / "sentry.jsonl").unlink()
    project.configure("""
from sentry_sdk.integrations.logging import ignore_logger
ignore_logger("pika.*")""")
    project.manage("run_outbox", "--drain", "--publisher=rabbitmq", code=1)
    assert sent("event") == []


def test_a_view_that_fails_is_one_issue_and_no_message(project: Project, sent: Any):
    project.migrate()
    project.execute("""
from django.test import Client
assert Client(raise_request_exception=False).get("/orders/1/?fail").status_code == 500""")
    [event] = sent("event")
    assert event["exception"]["values"][-1]["value"] == "order 1 failed"
    assert project.count() == 0


@pytest.fixture
def queue(project: Project) -> Iterator[str]:
    name = f"outbox-test-{uuid.uuid4().hex[:8]}"
    yield name
    project.stop()
    with broker_channel() as channel:
        channel.queue_delete(name)
        channel.exchange_delete(name)


def test_a_task_continues_the_trace_of_its_request(project: Project, sent: Any, queue: str):
    project.write("mysite/celery.py", CELERY)
    project.write("mysite/__init__.py", "from .celery import app")
    project.configure(f"""
CELERY_BROKER_URL = {settings.AMQP_URL!r}
CELERY_TASK_DEFAULT_QUEUE = {queue!r}
OUTBOX["PUBLISHERS"]["celery"] = {{
    "BACKEND": "django_outbox.brokers.celery.CeleryPublisher", "OPTIONS": {{"app": "mysite.celery:app"}}
}}""")
    project.migrate()
    project.execute(REQUEST)
    project.manage("run_outbox", "--drain")
    project.start("celery", "-A", "mysite", "worker", "--concurrency=1", f"--hostname={queue}")

    def traces() -> dict[str, str]:
        return {item["transaction"]: item["contexts"]["trace"]["trace_id"] for item in sent("transaction")}

    eventually(lambda: "send_receipt" in traces(), seconds=PATIENCE)
    assert traces()["/receipt/"] == traces()["send_receipt"] == "0af7651916cd43dd8448eb211c80319c"
    assert sent("event") == []
