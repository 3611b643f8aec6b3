"""Every place that may show the payload or the headers of a message, and what hides them there.

Publishers, dead-letter copies, the archive, signals and handlers get whole messages, as docs/how-to/security.md says.
Nothing else shows what `REDACT` hides.
"""

import ast
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import django_outbox
from django_outbox.handlers import handler
from django_outbox.messages import INVALID_TYPE, Message, rejected
from django_outbox.models import OutboxMessage, Status
from tests.admin.test_hostile_text import shown
from tests.commands.test_hostile_text import CALLS
from tests.support.admin.tools import crawl, put, url
from tests.support.effects import HANDLERS, drain, scratch_handlers
from tests.support.publishers import SCRIPTED, Script
from tests.support.tracing import traceparent

pytest_plugins = ["tests.support.tracing_fixtures"]
pytestmark = pytest.mark.django_db(transaction=True)

CARRIES = {"brokers", "celery", "enqueueing", "events", "handlers", "inbox", "migrations", "stores", "testing"}
"""The packages that carry messages. Only log lines and errors show something there."""

NAMES = ("payload", "headers", "original")

PLACES = {
    # Shown by `redacted`.
    "admin/messages.py": {"_header", "_redacted", "OutboxMessageAdmin"},
    "admin/editing.py": {"", "EditForm"},
    "conf/redaction.py": {"_without_content"},
    # Left out of queries.
    "admin/changelist.py": {"MessageList"},
    "monitoring/queues.py": {"describe_blocked"},
    # Only names of headers of the trace context.
    "monitoring/tracing.py": {"OpenTelemetryTracer"},
    "tracing.py": {"_traced"},
    # Names of columns.
    "management/commands/outbox_debezium.py": {""},
    # The headers of a request of HTTP.
    "monitoring/views.py": {"metrics"},
    # Carried, or counted.
    "models/message.py": {"OutboxMessage", "OutboxMessageQuerySet"},
    "relay/batch.py": {"Batch"},
    "relay/dead_letters.py": {"_copy"},
    "retention/archive/restoring.py": {"_row"},
}
"""The functions and classes that read content, by file. Let a new one use `redacted`, and add it here."""


def readers(tree: ast.Module) -> set[str]:
    """Return the names of the functions and classes of a module in which content is named; blank for the module."""
    found = set()
    for top in tree.body:
        for node in ast.walk(top):
            name = getattr(node, "attr", None) or (node.value if isinstance(node, ast.Constant) else None)
            if isinstance(name, str) and name in NAMES:
                found.add(getattr(top, "name", ""))
    return found


def test_no_place_that_reads_content_is_new():
    root = Path(django_outbox.__file__).parent
    modules = {path.relative_to(root): path for path in root.rglob("*.py")}
    found = {
        str(name): places
        for name, path in modules.items()
        if name.parts[0] not in CARRIES and (places := readers(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == PLACES


SECRET = "ada@example.com"
PAYLOAD: Any = {SECRET: SECRET, "to": [{"deep": SECRET}]}
HEADERS = {SECRET: SECRET, "traceparent": traceparent(), "nested": {"deep": SECRET}}


def hide(type: str, payload: Any, headers: Any) -> tuple[Any, Any]:
    return "hidden", {}


@pytest.fixture
def failed(
    settings: Any, scripted: Script, spans: InMemorySpanExporter, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> list[int]:
    """Messages that failed at a publisher and in a handler, and others; their ids. Some have been archived."""
    archive = {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": tmp_path}}
    settings.STORAGES = {**settings.STORAGES, "archive": archive}
    retry = {"RETRY": {"MAX_ATTEMPTS": 1}}
    settings.OUTBOX = {
        "PUBLISHERS": {"default": {**SCRIPTED, **retry}, "handlers": {**HANDLERS, **retry}},
        "REDACT": f"{__name__}.hide",
        "ARCHIVE": {"storage": "archive"},
    }
    scripted.answer = lambda message: rejected("no reason")
    content = {"payload": PAYLOAD, "headers": HEADERS, "original": {"payload": PAYLOAD, "topic": "", "publisher": "x"}}
    with scratch_handlers(), caplog.at_level(logging.DEBUG, "django_outbox"):

        @handler("order.created")
        def fail(event: Any, message: Message) -> None:
            raise RuntimeError("no reason")

        for publisher in ("default", "handlers"):
            put(Status.PENDING, publisher=publisher, **content)
        put(Status.PENDING, publisher="handlers", type="unhandled", **content)
        put(Status.FAILED, type=INVALID_TYPE, **content)
        put(Status.PROCESSED, **content)
        drain("default")
        put(Status.FAILED, type="discarded", **content)
        call_command("outbox_discard", "--type", "discarded", "--no-input")
    ids = [*OutboxMessage.objects.values_list("pk", flat=True)]
    assert len(ids) == 5
    return ids


def test_log_errors_and_spans_show_no_content(
    failed: list[int], spans: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
):
    rows = OutboxMessage.objects.values_list("error", "error_class", "history", "failed_at")
    assert sum(failed_at is not None and "no reason" in error for error, *_, failed_at in rows) == 2
    assert SECRET not in repr([*rows])
    records = caplog.get_records("setup")
    lines = [f"{logging.Formatter().format(record)} {vars(record)}" for record in records]
    assert [line for line in lines if "Traceback" in line]
    assert SECRET not in "\n".join(lines)
    assert spans.get_finished_spans()
    assert SECRET not in "".join(str(span.to_json()) for span in spans.get_finished_spans())


def test_the_pages_show_no_content(admin_client: Client, failed: list[int]):
    pages = dict(crawl(admin_client, [url(name, id) for id in failed for name in ("change", "edit")]))
    assert not [address for address, page in pages.items() if SECRET in page]
    assert sum("hidden" in shown(page) for page in pages.values()) >= len(failed)
    for name in ("requeue", "discard", "retry_now"):
        page = admin_client.post(url(name), {"ids": ",".join(map(str, failed))}).content.decode()
        assert SECRET not in page
    for path in ("/outbox/health/", "/outbox/metrics/"):
        assert SECRET not in admin_client.get(path).content.decode()


@pytest.mark.parametrize("name", CALLS)
def test_no_command_shows_content(failed: list[int], name: str, capfd: pytest.CaptureFixture[str]):
    for arguments in CALLS[name]:
        with suppress(CommandError, SystemExit):
            call_command(name, *arguments, verbosity=3)
    out, err = capfd.readouterr()
    assert SECRET not in out + err
