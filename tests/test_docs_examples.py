"""Examples of the documentation that people copy, run."""

import http.server
import re
import threading
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest

from django_outbox import OutboxMessage, enqueue
from django_outbox.messages import Message, Verdict
from django_outbox.publishers.base import Publisher

HOW_TO = Path(__file__).resolve().parent.parent / "docs" / "how-to"


def example(page: str, defining: str) -> Any:
    """Run the example of a page that defines this name, and return what it stands for."""
    for code in re.findall(r"^```(?:\{code-block\} )?python\n(?::caption: [^\n]+\n)?(.*?)^```$", *text(page)):
        if re.search(rf"^(def|class) {defining}\b", code, re.MULTILINE):
            names: dict[str, Any] = {}
            exec(compile(code, page, "exec"), names)
            return names[defining]
    raise AssertionError(f"{page} has no example that defines {defining}")


def text(page: str) -> tuple[str, re.RegexFlag]:
    return (HOW_TO / page).read_text(), re.MULTILINE | re.DOTALL


class Webhook(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the body tells, and hangs up on 0."""

    def do_POST(self) -> None:
        status = int(self.rfile.read(int(self.headers["Content-Length"])))
        if status:
            self.send_response(status)
            self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Webhook) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        webhook = example("own-publisher.md", "WebhookPublisher")
        yield webhook("default", url=f"http://127.0.0.1:{server.server_port}/orders")
        server.shutdown()
        thread.join()


def message(payload: int) -> Message:
    return Message(1, str(uuid.uuid4()), "t", "", "", str(payload).encode(), {}, datetime.now(timezone.utc), 0)


def test_the_webhook_publisher_answers_for_each_message(publisher: Publisher):
    outcomes = publisher.publish([message(status) for status in (200, 400, 503, 429, 204)])
    assert [outcome.verdict for outcome in outcomes] == [
        Verdict.ACCEPTED,
        Verdict.REJECTED,
        Verdict.NOT_NOW,
        Verdict.NOT_NOW,
        Verdict.ACCEPTED,
    ]


def test_the_webhook_publisher_leaves_the_rest_unanswered_when_the_receiver_hangs_up(publisher: Publisher):
    outcomes = publisher.publish([message(status) for status in (200, 0, 200)])
    assert [outcome.verdict for outcome in outcomes] == [Verdict.ACCEPTED, Verdict.UNANSWERED, Verdict.UNANSWERED]


@pytest.mark.django_db
def test_the_metrics_count_what_is_due_and_what_failed():
    with transaction.atomic():
        enqueue("order.created", 1)
        enqueue("order.created", 2)
        enqueue("order.created", 3, delay=3600)
    OutboxMessage.objects.filter(payload=2).update(available_at=None, failed_at=datetime.now(timezone.utc))
    metrics = example("monitoring.md", "outbox_metrics")(HttpRequest()).content.decode()
    assert "outbox_failed 1\n" in metrics
    assert 'outbox_due{publisher="default",type="order.created"} 1\n' in metrics
    assert 'outbox_oldest_seconds{publisher="default",type="order.created"} ' in metrics
