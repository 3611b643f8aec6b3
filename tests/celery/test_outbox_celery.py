"""The app class: what is called by name is stored as well, on each database."""

import pickle
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, Task, chain, group, signature
from celery.beat import Scheduler
from django.db import transaction
from django.test import override_settings

from django_outbox.celery import OutboxCelery, OutboxTask
from django_outbox.celery.calls import StoringProducer
from django_outbox.exceptions import TransactionRequired
from django_outbox.models import OutboxMessage
from tests.conftest import ALIASES
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS
from tests.support.ports import free_port

pytestmark = pytest.mark.django_db(databases=ALIASES)


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch, using: str) -> Iterator[Celery]:
    """An app without a running broker and result backend."""
    made = celery_app.make_app(f"amqp://127.0.0.1:{free_port()}//", "outbox-test", app_class=OutboxCelery)
    made.conf.update(result_backend=f"redis://127.0.0.1:{free_port()}/0", broker_connection_timeout=1)
    monkeypatch.setattr(celery_app, "app", made)
    monkeypatch.setattr(OutboxTask, "outbox_using", using)
    monkeypatch.setattr(OutboxCelery, "outbox_using", using)
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}):
        yield made
        made.close()


def rows_of(using: str) -> list[OutboxMessage]:
    return [*OutboxMessage.objects.using(using).order_by("id")]


def beat(app: Celery, task: str, **entry: Any) -> None:
    """Call a task as beat does."""
    scheduler = Scheduler(app, schedule={})
    scheduler.update_from_dict({"entry": {"task": task, "schedule": timedelta(seconds=1), **entry}})
    scheduler.apply_async(scheduler.schedule["entry"], advance=False)


@pytest.mark.parametrize("name", ["tests.add", "billing.charge"])
def test_a_call_by_name_follows_the_transaction(app: Celery, using: str, name: str):
    with transaction.atomic(using=using):
        kept = app.send_task(name, (1, 2), countdown=60)
        with transaction.atomic(using=using):
            app.send_task(name, (3, 4))
            transaction.set_rollback(True, using=using)
    (row,) = rows_of(using)
    assert (row.type, str(row.message_id), row.headers["argsrepr"]) == (name, kept.id, "(1, 2)")
    assert row.available_at is not None
    assert row.available_at - row.occurred_at > timedelta(seconds=50)


def test_signatures_by_name_are_stored(app: Celery, using: str):
    with transaction.atomic(using=using):
        signature("billing.charge", (1,), app=app).delay()
        chain(signature("billing.charge", (2,), app=app), signature("billing.book", app=app)).delay()
    assert [row.headers["argsrepr"] for row in rows_of(using)] == ["(1,)", "(2,)"]


def test_beat_entries_of_tasks_that_are_not_imported_are_stored(app: Celery, using: str):
    beat(app, "billing.close_day", args=(7,))
    (row,) = rows_of(using)
    assert (row.type, row.headers["argsrepr"], row.headers["celery_beat_task"]) == ("billing.close_day", "[7]", True)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda app, plain, note: plain.delay(1), (["plain"], [])),
        (lambda app, plain, note: app.send_task("tests.plain", (1,), ignore_result=True), (["plain"], [])),
        (lambda app, plain, note: app.signature("tests.plain", (1,)).delay(), (["plain"], [])),
        (lambda app, plain, note: chain(plain.si(1), note.si(2)).delay(), (["plain"], [])),
        (lambda app, plain, note: chain(note.si(1), plain.si(2)).delay(), ([], ["note"])),
        (lambda app, plain, note: group(plain.si(1), note.si(2)).delay(), (["plain"], ["note"])),
        (lambda app, plain, note: beat(app, "tests.plain", args=(1,)), (["plain"], [])),
    ],
    ids=["call", "name", "signature", "first of a chain", "second of a chain", "group", "beat"],
)
def test_the_base_of_a_task_decides_whether_its_call_is_stored(
    app: Celery, using: str, monkeypatch: pytest.MonkeyPatch, call: Any, expected: tuple[list[str], list[str]]
):
    sent: list[str] = []
    send = app.amqp.send_task_message

    def send_message(producer: Any, name: str, *arguments: Any, **options: Any) -> Any:
        if isinstance(producer, StoringProducer):
            return send(producer, name, *arguments, **options)
        return sent.append(name.removeprefix("tests."))

    monkeypatch.setattr(app.amqp, "send_task_message", send_message)
    app.conf.update(result_backend="cache+memory://")
    plain: Any = app.task(name="tests.plain", base=Task, shared=False, ignore_result=True)(celery_app.note)
    with transaction.atomic(using=using):
        call(app, plain, app.tasks["tests.note"])
        stored = [row.type.removeprefix("tests.") for row in rows_of(using)]
        transaction.set_rollback(True, using=using)
    assert (sent, stored) == expected


def test_a_call_by_name_in_a_transaction_on_another_database_is_refused(app: Celery, using: str):
    other = "default" if using != "default" else "postgresql"
    with transaction.atomic(using=other):
        with pytest.raises(TransactionRequired, match=r"^The task 'billing.charge' was called in a transaction on"):
            app.send_task("billing.charge")
        app.send_task("billing.charge", using=using)
    assert len(rows_of(using)) == 1


def test_its_attributes_choose_the_publisher_of_tasks_that_it_does_not_know(
    app: Celery, using: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(app, "outbox_publisher", "default", raising=False)
    app.send_task("billing.charge")
    app.send_task("tests.add", (1, 2))
    assert [row.publisher for row in rows_of(using)] == ["default", "celery"]


def test_it_can_be_pickled_as_celery_does_for_its_processes(app: Celery):
    assert type(pickle.loads(pickle.dumps(app))) is OutboxCelery
