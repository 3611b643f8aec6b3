"""Django Tasks in Celery workers: real ones, on RabbitMQ and Redis, of a relay that sends what was committed."""

import datetime
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from django.contrib.auth.models import Group
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_outbox.models import OutboxMessage
from tests.support.celery import app as celery_app
from tests.support.celery.tools import BROKERS, PUBLISHERS, cleaned_up, close, new_prefix, worker
from tests.support.effects import leave
from tests.support.relay_threads import relays_in_threads
from tests.support.waiting import eventually

pytest.importorskip("django.tasks", reason="Django 5.2 has no django.tasks")

from django.tasks import TaskResultStatus, default_task_backend

USING = "postgresql"

pytestmark = [pytest.mark.django_db(transaction=True, databases=["default", USING])]

BACKEND = "django_outbox.contrib.django_tasks.OutboxBackend"


@pytest.fixture(scope="module", params=[*BROKERS])
def app(
    request: pytest.FixtureRequest, django_db_setup: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Celery]:
    """An app with a running worker."""
    prefix, url = new_prefix(), BROKERS[request.param]
    log = tmp_path_factory.mktemp("worker") / "log"
    made = celery_app.make_app(url, prefix)
    with cleaned_up(prefix), worker(made, USING, url, log, queues=f"{prefix},{prefix}-mail"):
        yield made
        close(made)


@pytest.fixture
def tasks(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of tasks, which a relay sends to the worker."""
    monkeypatch.setattr(celery_app, "app", app)
    backend = {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": {"publisher": "celery", "database": USING}}
    with (
        override_settings(OUTBOX={"PUBLISHERS": PUBLISHERS, "POLL_INTERVAL": 0.05}, TASKS={"default": backend}),
        relays_in_threads(using=USING, publishers=["celery"]) as start,
    ):
        start()
        from tests.support import django_tasks  # noqa: PLC0415 - needs Django 6.0

        yield django_tasks


def finish(result: Any) -> Any:
    """Return a result when its task has ended."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    eventually(is_finished, seconds=60)
    return result


def test_a_committed_task_is_run_by_a_worker_and_one_that_is_rolled_back_is_not(tasks: Any):
    with transaction.atomic(using=USING):
        lost = tasks.leave_effect.enqueue("default", "lost")
        transaction.set_rollback(True, using=USING)
    with transaction.atomic(using=USING):
        result = tasks.leave_effect.enqueue("default", "kept")
        assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)
    assert finish(result).status == TaskResultStatus.SUCCESSFUL
    assert result.return_value == "kept"
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert (result.attempts, result.errors) == (1, [])
    assert default_task_backend.get_result(result.id) == result
    message = OutboxMessage.objects.using(USING).get()
    assert str(message.message_id) == result.id != lost.id
    assert [*Group.objects.using(USING).values_list("name", flat=True)] == ["kept"]


def test_a_running_task_and_its_result_are_seen_by_others(tasks: Any):
    result = tasks.wait_for_effect.enqueue("default", "end")

    def is_running() -> bool:
        result.refresh()
        return bool(result.status == TaskResultStatus.RUNNING)

    eventually(is_running, seconds=60)
    assert result.attempts == 1
    leave(USING, "end")
    assert finish(result).status == TaskResultStatus.SUCCESSFUL


def test_a_task_that_raises_has_failed_with_its_error(tasks: Any):
    results = [tasks.leave_effect_and_fail.enqueue("default", "x"), tasks.exit_process.enqueue()]
    failed, exited = map(finish, results)
    assert (failed.status, failed.attempts) == (TaskResultStatus.FAILED, 1)
    assert failed.errors[0].exception_class is ValueError
    assert failed.errors[0].traceback.endswith("ValueError: no x\n")
    assert "django_tasks/tasks.py" not in failed.errors[0].traceback
    assert exited.errors[0].exception_class is SystemExit
    assert finish(tasks.return_a_set.enqueue()).errors[0].exception_class is TypeError


def test_async_tasks_and_tasks_with_a_context_are_run(tasks: Any):
    result, own = tasks.leave_effect_async.enqueue("default", "async"), tasks.own_id.enqueue()
    assert finish(result).return_value == "async"
    assert finish(own).return_value == own.id


def test_run_after_queue_and_priority_reach_the_worker(tasks: Any, app: Celery):
    prefix = app.conf.task_default_queue
    later = timezone.now() + datetime.timedelta(seconds=4)
    task = tasks.echo.using(run_after=later, queue_name=f"{prefix}-mail", priority=100)
    result = task.enqueue([1, None])
    message = OutboxMessage.objects.using(USING).get()
    assert message.available_at == later
    assert message.payload["queues"] == [f"{prefix}-mail"]
    is_redis = app.conf.broker_read_url.startswith("redis")
    assert message.payload["properties"]["priority"] == (0 if is_redis else 9)
    assert finish(result).return_value == [1, None]
    assert result.started_at >= later
    assert default_task_backend.get_result(result.id) == result
    assert result.task == task


def test_a_task_is_not_lost_with_its_worker_process(tasks: Any):
    result = tasks.leave_effect_and_end_process.enqueue("default", "first")
    assert finish(result).status == TaskResultStatus.SUCCESSFUL
    assert (result.attempts, result.errors) == (2, [])


def test_a_message_that_arrives_twice_runs_a_task_once(tasks: Any):
    result = finish(tasks.leave_effect.enqueue("default", "once"))
    # The relay sends it again, as after a crash.
    OutboxMessage.objects.using(USING).update(processed_at=None, available_at=timezone.now())
    eventually(lambda: not OutboxMessage.objects.using(USING).pending().exists(), seconds=60)
    finish(tasks.leave_effect.enqueue("default", "after"))
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.SUCCESSFUL, 1, [])
