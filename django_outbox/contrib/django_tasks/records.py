"""Read the results of tasks."""

import uuid
from typing import Any

from django.db import router
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.utils import timezone
from django.utils.module_loading import import_string

from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import AnyResult, AnyTask, BackendOptions
from django_outbox.contrib.django_tasks.publishers import runs_in_celery
from django_outbox.models import OutboxMessage, Status


def choose_database(options: BackendOptions) -> str:
    """Return the alias of the database in which a backend stores tasks and results."""
    return options.database or router.db_for_write(OutboxMessage)


def find_result(options: BackendOptions, message_id: uuid.UUID) -> "AnyResult | None":
    """Return a result; None if there is no record of it."""
    using = choose_database(options)
    record = TaskRecord.objects.using(using).filter(message_id=message_id, backend=options.alias).first()
    if record is None:
        return None
    if record.status != TaskResultStatus.SUCCESSFUL:
        _follow_message(record, using)
    return make_result(record, find_task(record))


def _follow_message(record: TaskRecord, using: str) -> None:
    """Take over what an operator did to the message: cancel, requeue or discard it."""
    in_celery = runs_in_celery(record.publisher)
    if in_celery and record.status != TaskResultStatus.READY:
        # A worker has received it, maybe before the relay has written so.
        return
    messages = OutboxMessage.objects.using(using)
    message = messages.filter(message_id=record.message_id, publisher=record.publisher).first()
    if message is None and in_celery:
        # It was sent, and purged. The task waits for a worker.
        return
    if message is None or message.status == Status.FAILED:
        # It may have ended after the record was read.
        record.refresh_from_db(using=using)
        if record.status != TaskResultStatus.SUCCESSFUL:
            record.status = TaskResultStatus.FAILED
            record.finished_at = record.finished_at or (message.failed_at if message else None)
    elif message.status == Status.PENDING and not _is_leased(record, message):
        record.status = TaskResultStatus.READY
        record.finished_at = None


def _is_leased(record: TaskRecord, message: OutboxMessage) -> bool:
    """Return whether a relay runs the task: it moves the time of the message ahead."""
    at = message.available_at
    return record.status == TaskResultStatus.RUNNING and at is not None and at > timezone.now()


def make_payload(record: TaskRecord) -> dict[str, Any]:
    """Return what a worker needs to run a task."""
    return {
        "task": record.path,
        "backend": record.backend,
        "queue_name": record.queue_name,
        "args": record.args,
        "kwargs": record.kwargs,
    }


def find_task(record: TaskRecord) -> AnyTask:
    """Return the task of a record.

    Raises:
        ImportError: there is no such function, or it is not a task.
        InvalidTask: the backend does not take it any more.
    """
    task = import_string(record.path)
    if not isinstance(task, Task):
        raise ImportError(f"{record.path} is not a task any more. Decorate it with @task.")
    return task.using(
        priority=record.priority, queue_name=record.queue_name, run_after=record.run_after, backend=record.backend
    )


def make_result(record: TaskRecord, task: AnyTask) -> AnyResult:
    """Return a record as Django's result."""
    result: AnyResult = TaskResult(
        task=task,
        id=str(record.message_id),
        status=TaskResultStatus(record.status),
        enqueued_at=record.enqueued_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        last_attempted_at=record.last_attempted_at,
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend,
        errors=[TaskError(**error) for error in record.errors],
        worker_ids=[*record.worker_ids],
    )
    object.__setattr__(result, "_return_value", record.return_value)
    return result
