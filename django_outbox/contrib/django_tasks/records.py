"""Write tasks and read their results."""

import uuid
from contextlib import nullcontext
from typing import Any

from django.db import connections, router, transaction
from django.tasks.base import Task, TaskError, TaskResult, TaskResultStatus
from django.utils import timezone
from django.utils.module_loading import import_string

from django_outbox.contrib.django_tasks.backend import AnyResult, AnyTask, OutboxBackend
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.enqueueing.enqueue import enqueue
from django_outbox.models import OutboxMessage, Status

TYPE = "django.task"
"""The type of the messages of tasks."""


def choose_database(backend: OutboxBackend) -> str:
    """Return the alias of the database in which a backend stores tasks and results."""
    alias: str = backend.options.get("database") or router.db_for_write(OutboxMessage)
    return alias


def store_task(backend: OutboxBackend, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:
    """Insert a message and a record, both or none.

    Raises:
        InvalidMessage: a value is invalid. Nothing was written, and the transaction can continue.
    """
    using = choose_database(backend)
    publisher = backend.choose_publisher(task.queue_name)
    # The caller's block rolls back both rows; a nested block would be marked for rollback by an invalid argument.
    block = nullcontext() if connections[using].in_atomic_block else transaction.atomic(using=using)
    with block:
        message = enqueue(
            TYPE,
            {
                "task": task.module_path,
                "backend": backend.alias,
                "queue_name": task.queue_name,
                "args": args,
                "kwargs": kwargs,
            },
            topic=task.module_path,
            available_at=task.run_after,
            publisher=publisher,
            using=using,
            require_transaction=False,
        )
        record = TaskRecord(
            message_id=message.message_id,
            path=task.module_path,
            backend=backend.alias,
            queue_name=task.queue_name,
            publisher=publisher,
            args=args,
            kwargs=kwargs,
            run_after=task.run_after,
            enqueued_at=timezone.now(),
        )
        record.save(force_insert=True, using=using)
    return make_result(record, task)


def find_result(backend: OutboxBackend, message_id: uuid.UUID) -> "AnyResult | None":
    """Return a result; None if there is no record of it."""
    using = choose_database(backend)
    record = TaskRecord.objects.using(using).filter(message_id=message_id, backend=backend.alias).first()
    if record is None:
        return None
    if record.status != TaskResultStatus.SUCCESSFUL:
        _follow_message(record, using)
    return make_result(record, find_task(record))


def _follow_message(record: TaskRecord, using: str) -> None:
    """Take over what an operator did to the message: cancel or requeue it."""
    messages = OutboxMessage.objects.using(using)
    message = messages.filter(message_id=record.message_id, publisher=record.publisher).first()
    if message is None or message.status == Status.PROCESSED:
        return
    failed = message.status == Status.FAILED
    if failed:
        # It may have failed after the record was read.
        record.refresh_from_db(using=using)
    record.status = TaskResultStatus.FAILED if failed else TaskResultStatus.READY
    record.finished_at = (record.finished_at or message.failed_at) if failed else None


def find_task(record: TaskRecord) -> AnyTask:
    """Return the task of a record.

    Raises:
        ImportError: there is no such function, or it is not a task.
        InvalidTask: the backend does not take it any more.
    """
    task = import_string(record.path)
    if not isinstance(task, Task):
        raise ImportError(f"{record.path} is not a task any more. Decorate it with @task.")
    return task.using(queue_name=record.queue_name, run_after=record.run_after, backend=record.backend)


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
