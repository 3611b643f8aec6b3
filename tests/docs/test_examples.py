"""Examples of the documentation that people copy, run."""

import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connections, transaction
from django.test import RequestFactory, override_settings

from django_outbox import OutboxMessage, enqueue
from django_outbox.brokers import Publisher
from django_outbox.checks import TAG
from django_outbox.messages import Message, OutcomeKind
from django_outbox.monitoring import views
from django_outbox.retention import discard
from tests.conftest import ALIASES
from tests.docs.blocks import HOW_TO, example, find
from tests.support.archives import archives, archiving, failed
from tests.support.http.receiver import Call, Receiver, Reply


def reply(call: Call) -> Reply:
    """Answer with the status that the body names, and hang up on 0."""
    if status := int(call.body):
        return Reply(status)
    raise ConnectionError


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Receiver(reply) as receiver:
        yield example("custom-publisher", "WebhookPublisher")("default", url=receiver.url("/orders"))


def message(payload: int) -> Message:
    return Message(1, str(uuid.uuid4()), "t", "", "", str(payload).encode(), {}, datetime.now(timezone.utc), 0)


def test_the_webhook_publisher_answers_for_each_message(publisher: Publisher):
    outcomes = publisher.publish([message(status) for status in (200, 400, 503, 429, 204)])
    assert [outcome.kind for outcome in outcomes] == [
        OutcomeKind.ACCEPTED,
        OutcomeKind.REJECTED,
        OutcomeKind.DEFERRED,
        OutcomeKind.DEFERRED,
        OutcomeKind.ACCEPTED,
    ]


def test_the_webhook_publisher_leaves_the_rest_unanswered_when_the_receiver_hangs_up(publisher: Publisher):
    outcomes = publisher.publish([message(status) for status in (200, 0, 200)])
    assert [outcome.kind for outcome in outcomes] == [OutcomeKind.ACCEPTED, *[OutcomeKind.UNANSWERED] * 2]


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), ("Bearer s3cret", 200)],
    ids=["no token", "wrong token", "token"],
)
@pytest.mark.django_db
def test_the_token_of_the_guide_to_monitoring_protects_a_page(header: str | None, status: int, settings: Any):
    settings.METRICS_TOKEN = "s3cret"
    headers = {"Authorization": header} if header else {}
    protected = example("monitoring", "token_required")(views.metrics)
    assert protected(RequestFactory().get("/", headers=headers)).status_code == status


@pytest.mark.django_db
def test_the_dry_run_of_the_guide_to_failed_messages_prints_what_it_prints():
    with transaction.atomic():
        for number in range(15):
            enqueue("order.created", number, key="order-7")
    failed = OutboxMessage.objects.all()
    failed.update(available_at=None, failed_at=datetime.now(timezone.utc), blocks_key=False)
    failed.filter(pk__in=failed.values_list("pk")[:12]).update(blocks_key=True)
    output = StringIO()
    call_command("outbox_requeue", "--dry-run", stdout=output)
    header, _, *end = output.getvalue().splitlines()
    begin = "$ python manage.py outbox_requeue --dry-run\n"
    (transcript,) = [text for text in find("failed-messages", "console") if text.startswith(begin)]
    lines = transcript.splitlines()[1:]
    assert re.split(r"\s{2,}", lines[0]) == re.split(r"\s{2,}", header)
    assert [line.replace("1,207", "15") for line in lines[-2:]] == end


@pytest.mark.django_db(databases=["postgresql"])
def test_the_statement_of_the_guide_to_performance_runs_on_postgresql():
    [statement] = find("performance", "sql")
    with connections["postgresql"].cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.django_db(databases=ALIASES, transaction=True)
def test_the_guide_to_the_archive_shows_what_outbox_restore_prints(tmp_path: Path):
    page = (HOW_TO / "retention.md").read_text()
    ((command, shown),) = re.findall(r"^\$ python manage.py (outbox_restore .*)\n(.+\n)```", page, re.MULTILINE)
    with archiving(tmp_path):
        failed("default", 1)
        (message_id,) = OutboxMessage.objects.values_list("message_id", flat=True)
        discard(OutboxMessage.objects.all(), by="alice")
        (manifest,) = tmp_path.rglob("*.manifest.json")
        assert '"by": "alice"' in manifest.read_text()
        name, flag, target, _, _ = command.split()
        output = StringIO()
        call_command(name, flag, target, archives("default")[0].name, str(message_id), stdout=output)
        assert output.getvalue() == shown
        assert OutboxMessage.objects.failed().count() == 1


def test_the_settings_of_the_guide_to_the_archive_pass_the_checks(tmp_path: Path):
    code, *_ = find("retention", caption="settings.py")
    names: dict[str, Any] = {}
    exec(compile(code, "retention.md", "exec"), names)
    with override_settings(STORAGES=names["STORAGES"], OUTBOX=names["OUTBOX"]):
        assert run_checks(tags=[TAG], databases=[]) == []


@pytest.mark.django_db(databases=ALIASES)
@pytest.mark.parametrize("using", ALIASES)
def test_the_statement_for_a_copy_of_production_removes_the_pending_messages(using: str):
    (statement,) = find("deployment", "sql")
    with transaction.atomic(using=using):
        _, processed, failed = (enqueue("order.created", number, using=using) for number in range(3))
        now = datetime.now(timezone.utc)
        messages = OutboxMessage.objects.using(using)
        messages.filter(pk=processed.pk).update(available_at=None, processed_at=now)
        messages.filter(pk=failed.pk).update(available_at=None, failed_at=now)
        with connections[using].cursor() as cursor:
            cursor.execute(statement)
    assert set(messages.values_list("pk", flat=True)) == {processed.pk, failed.pk}
