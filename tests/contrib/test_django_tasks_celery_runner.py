"""Django Tasks stored for Celery, and the Celery task that runs them, without a worker."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import QueueNotFound
from django.db import OperationalError, connections, transaction
from django.test import override_settings
from django.utils import timezone
from kombu import Queue

from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.registry import registry
from django_outbox.models import OutboxMessage
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS
from tests.support.effects import HANDLERS, effects
from tests.support.ports import free_port

pytest.importorskip("django.tasks", reason="Django 5.2 has no django.tasks")

from django.tasks import TaskResultStatus, task_backends
from django.tasks.checks import check_tasks
from django.tasks.exceptions import InvalidTask

from django_outbox.contrib.django_tasks import records
from django_outbox.contrib.django_tasks import tasks as runner
from django_outbox.contrib.django_tasks.models import TaskRecord

pytestmark = pytest.mark.django_db(transaction=True)

BACKEND = "django_outbox.contrib.django_tasks.OutboxBackend"
RABBITMQ = "amqp://guest:guest@127.0.0.1:{}//"
REDIS = "redis://127.0.0.1:{}/0"


@pytest.fixture
def using() -> str:
    """The quickest database; the tests with workers use PostgreSQL, those with a relay all of them."""
    return "default"


@pytest.fixture
def app(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """An app without a running broker; its URL and settings may be parameters."""
    broker, conf = getattr(request, "param", (RABBITMQ, {}))
    made = celery_app.make_app(broker.format(free_port()), "outbox-test", **conf)
    monkeypatch.setattr(celery_app, "app", made)
    yield made
    made.close()


@pytest.fixture
def tasks(app: Celery, using: str) -> Iterator[Any]:
    """The module of tasks, which are stored for Celery; in the queue `local`, for handlers."""
    options = {"publisher": "celery", "database": using, "queues": {"local": "handlers"}}
    backend = {"BACKEND": BACKEND, "QUEUES": ["default", "mail", "local"], "OPTIONS": options}
    publishers = {**PUBLISHERS, "handlers": HANDLERS}
    with override_settings(OUTBOX={"PUBLISHERS": publishers}, TASKS={"default": backend}), registry.scratch():
        from tests.support import django_tasks  # noqa: PLC0415 - needs Django 6.0

        django_tasks.calls.clear()
        yield django_tasks


def stored(using: str) -> OutboxMessage:
    return OutboxMessage.objects.using(using).get()


def run(app: Celery, using: str) -> Any:
    """Run the only task as a worker does, without the broker."""
    message = stored(using)
    record = TaskRecord.objects.using(using).first()
    payload: dict[str, Any] = {
        "task": record.path if record else "tests.support.django_tasks.note",
        "backend": "default",
        "queue_name": "default",
        "args": record.args if record else [1],
        "kwargs": {},
    }
    return app.tasks[runner.NAME].apply((payload,), task_id=str(message.message_id))


def test_a_task_is_a_message_for_celery_that_shows_the_tasks_path(tasks: Any, using: str):
    with transaction.atomic(using=using):
        result = tasks.add.enqueue(1, b=2)
    message = stored(using)
    assert (message.type, message.publisher, message.topic) == (runner.NAME, "celery", "outbox-test")
    assert (message.headers["id"], message.headers["shadow"]) == (result.id, "tests.support.django_tasks.add")
    assert message.headers["ignore_result"] is True
    assert TaskRecord.objects.using(using).get().publisher == "celery"
    assert tasks.add.get_result(result.id) == result


def test_celery_as_the_publisher_is_valid_and_needs_no_handler(app: Celery):
    backend = {"BACKEND": BACKEND, "OPTIONS": {"publisher": "celery"}}
    with override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS}, TASKS={"default": backend}), registry.scratch():
        assert [*check_tasks()] == []
        task_backends["default"].register_runners()  # type: ignore[attr-defined]
        assert [*registry] == []


def test_an_argument_that_cannot_be_stored_does_not_break_the_transaction(tasks: Any, using: str):
    with transaction.atomic(using=using):
        for argument, error in (({1}, TypeError), ("x" * 2_000_000, InvalidMessage)):
            with pytest.raises(error):
                tasks.note.enqueue(argument)
        tasks.add.enqueue(1, 2)
    assert stored(using).headers["shadow"].endswith(".add")
    assert TaskRecord.objects.using(using).count() == 1


def test_a_queue_has_the_same_name_in_celery_and_the_default_one_is_that_of_the_app(tasks: Any, using: str):
    tasks.note.using(queue_name="mail").enqueue()
    tasks.note.enqueue()
    tasks.note.using(queue_name="local").enqueue()
    rows = OutboxMessage.objects.using(using).order_by("id")
    assert [(row.publisher, row.topic) for row in rows] == [
        ("celery", "mail"),
        ("celery", "outbox-test"),
        ("handlers", "tests.support.django_tasks.note"),
    ]


def test_a_queue_that_the_app_may_not_create_is_refused(tasks: Any, using: str, app: Celery):
    app.conf.task_create_missing_queues = False
    with transaction.atomic(using=using):
        with pytest.raises(QueueNotFound, match="'mail' missing from task_queues"):
            tasks.note.using(queue_name="mail").enqueue()
        tasks.note.enqueue()
    assert TaskRecord.objects.using(using).count() == 1


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ((RABBITMQ, {}), {100: 9, 50: 4, -100: 0}),
        ((RABBITMQ, {"task_queue_max_priority": 5}), {100: 5, 40: 2, 0: None}),
        ((RABBITMQ, {"task_default_priority": 5, "task_queue_max_priority": 10}), {100: 10, 20: 6, 0: 5, -100: 0}),
        ((RABBITMQ, {"task_queues": [Queue("outbox-test", max_priority=3)]}), {100: 3}),
        ((REDIS, {}), {100: 0, 0: None, -50: 4, -100: 9}),
        ((REDIS, {"task_default_priority": 5}), {100: 0, 0: 5, -100: 9}),
        (("memory://{}", {}), {100: None}),
    ],
    indirect=["app"],
    ids=["rabbitmq", "maximum", "middle", "queue", "redis", "redis middle", "others"],
)
def test_a_priority_becomes_that_of_the_broker(tasks: Any, using: str, expected: dict[int, int | None]):
    for priority in expected:
        tasks.note.using(priority=priority).enqueue()
    rows = OutboxMessage.objects.using(using).order_by("id")
    assert [row.payload["properties"].get("priority") for row in rows] == [*expected.values()]


def test_a_priority_is_refused_where_a_relay_runs_the_task(tasks: Any):
    with pytest.raises(InvalidTask, match="publisher 'handlers' of the queue 'local' does not support"):
        tasks.note.using(priority=10, queue_name="local")


def test_a_task_whose_time_has_come_is_due_at_once(tasks: Any, using: str):
    tasks.note.using(run_after=timezone.now() - datetime.timedelta(hours=1)).enqueue()
    assert "eta" not in {name for name, value in stored(using).headers.items() if value}


def test_the_result_is_that_of_the_worker_before_the_relay_has_written_that_it_sent_the_task(
    tasks: Any, using: str, app: Celery
):
    result = tasks.leave_effect_and_fail.enqueue(using, "x")
    assert run(app, using).state == "FAILURE"
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)


def test_a_task_that_could_not_be_sent_has_failed(tasks: Any, using: str):
    result = tasks.note.enqueue()
    OutboxMessage.objects.using(using).update(available_at=None, failed_at=timezone.now())
    result.refresh()
    assert result.status == TaskResultStatus.FAILED


def test_eager_tasks_are_run_at_once_and_leave_a_result(tasks: Any, using: str, app: Celery):
    app.conf.task_always_eager = True
    with transaction.atomic(using=using):
        result = tasks.leave_effect.enqueue(using, "now")
        assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, "now")
    assert not OutboxMessage.objects.using(using).exists()
    assert tasks.leave_effect.get_result(result.id) == result


def test_a_worker_waits_for_the_database(tasks: Any, using: str, app: Celery, monkeypatch: pytest.MonkeyPatch):
    result = tasks.leave_effect.enqueue(using, "one")
    begin, failures = runner._begin, [OperationalError("the server is away")] * 9

    def fail_first(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return begin(*args)

    monkeypatch.setattr(runner, "_begin", fail_first)
    run(app, using)
    result.refresh()
    assert (result.status, result.attempts, failures) == (TaskResultStatus.SUCCESSFUL, 1, [])


def test_a_result_that_cannot_be_written_gives_the_task_back_to_the_broker(
    tasks: Any, using: str, app: Celery, monkeypatch: pytest.MonkeyPatch
):
    result = tasks.note.enqueue()

    def fail(record: TaskRecord, using: str) -> None:
        if record.finished_at:
            raise OperationalError("the server is away")
        records.update(record, using)

    monkeypatch.setattr(runner, "update", fail)
    assert run(app, using).state == "REJECTED"
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    monkeypatch.setattr(runner, "update", records.update)
    run(app, using)
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 2)


def test_a_task_that_ends_its_workers_fails_in_the_end(tasks: Any, using: str, app: Celery):
    result = tasks.note.enqueue()
    TaskRecord.objects.using(using).update(worker_ids=["a"] * runner.MAX_LOST_ATTEMPTS)
    assert run(app, using).state == "FAILURE"
    result.refresh()
    assert (result.status, tasks.calls) == (TaskResultStatus.FAILED, [])
    assert result.errors[0].exception_class is runner.WorkerLost


def test_a_task_whose_result_was_purged_is_run(tasks: Any, using: str, app: Celery):
    tasks.note.enqueue(1)
    TaskRecord.objects.using(using).all().delete()
    assert run(app, using).state == "SUCCESS"
    assert tasks.calls == [((1,), {})]


def test_a_task_that_leaves_its_connection_broken_still_gets_its_result(
    tasks: Any, using: str, app: Celery, monkeypatch: pytest.MonkeyPatch
):
    result = tasks.leave_effect_and_fail.enqueue(using, "kept")
    run(app, using)
    connections[using].close()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    # Unlike in a relay, what the task has written before its error is kept.
    assert effects(using) == ["kept"]
