"""One attempt to run a task: what a relay or a Celery worker does with the record of its result."""

import datetime
import uuid
from typing import Any

from django.db import connections, transaction
from django.dispatch import Signal
from django.tasks import task_backends
from django.tasks.base import TaskContext, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json

from django_outbox.contrib.django_tasks.errors import describe_error
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import AnyResult
from django_outbox.contrib.django_tasks.records import find_task, make_result
from django_outbox.enqueueing.json_checks import check_json
from django_outbox.stores import get_store

MAX_ERRORS = 20
"""Maximum number of errors in a result: the newest ones."""

CHANGING = (
    "status",
    "started_at",
    "last_attempted_at",
    "finished_at",
    "return_value",
    "errors",
    "worker_ids",
)
"""The fields that an attempt writes."""


def make_record(payload: Any, message_id: str, enqueued_at: datetime.datetime) -> TaskRecord:
    """Return a record for a task whose record was purged; it is never stored."""
    return TaskRecord(
        message_id=uuid.UUID(message_id),
        path=payload["task"],
        backend=payload["backend"],
        queue_name=payload["queue_name"],
        args=payload["args"],
        kwargs=payload["kwargs"],
        enqueued_at=enqueued_at,
    )


def begin(record: TaskRecord, now: datetime.datetime, worker_id: str) -> None:
    """Change a record to that of a task which a worker has begun."""
    record.status = TaskResultStatus.RUNNING
    record.started_at = record.started_at or now
    record.last_attempted_at = now
    record.finished_at = None
    record.worker_ids = [*record.worker_ids, worker_id]


def call(record: TaskRecord) -> Any:
    """Run the task of a record that has begun, and return what it returns.

    Raises:
        BaseException: whatever the task raises, or an error because there is no such task any more.
    """
    result = make_result(record, find_task(record))
    _send(task_started, result)
    context = [TaskContext(task_result=result)] if result.task.takes_context else []
    return result.task.call(*context, *result.args, **result.kwargs)


def succeed(record: TaskRecord, returned: Any, using: str) -> None:
    """Change a record to that of a task that has returned.

    Raises:
        TypeError: the return value is not JSON.
        ValueError: it is bytes that are not UTF-8.
        InvalidMessage: the database would not return it unchanged.
    """
    value = normalize_json(returned)
    check_json("return_value", value, get_store(connections[using]))
    record.return_value = value
    record.status = TaskResultStatus.SUCCESSFUL
    record.finished_at = timezone.now()


def fail(record: TaskRecord, error: BaseException, final: bool, using: str) -> None:
    """Change a record to that of a task whose attempt failed, for good if `final`."""
    record.errors = [*record.errors, describe_error(error, get_store(connections[using]))][-MAX_ERRORS:]
    record.status = TaskResultStatus.FAILED if final else TaskResultStatus.READY
    record.finished_at = timezone.now() if final else None


def update(record: TaskRecord, using: str) -> None:
    """Store what an attempt has changed, if the record is stored."""
    changes = {name: getattr(record, name) for name in CHANGING}
    TaskRecord.objects.using(using).filter(message_id=record.message_id).update(**changes)


def announce(record: TaskRecord, error: BaseException | None, using: str) -> None:
    """Send `task_finished` after the commit; if there is an error, within an `except` block, so that Django logs it."""
    try:
        result = make_result(record, find_task(record))
    except Exception:
        # The attempt failed because of that, and the signal needs a task.
        return

    def send() -> None:
        try:
            if error is not None:
                raise error
        except BaseException:
            _send(task_finished, result)
        else:
            _send(task_finished, result)

    transaction.on_commit(send, using=using)


def _send(signal: Signal, result: AnyResult) -> None:
    signal.send_robust(sender=type(task_backends[result.backend]), task_result=result)
