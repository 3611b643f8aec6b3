"""The Celery task that runs Django's tasks in a worker."""

from typing import Any

from celery import Task, shared_task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from django.db import InterfaceError, OperationalError, connections, transaction
from django.utils import timezone

from django_outbox.contrib.django_tasks.attempts import announce, begin, call, fail, make_record, succeed, update
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import options_of
from django_outbox.contrib.django_tasks.records import choose_database

__all__ = ["run_task"]

NAME = "django_outbox.contrib.django_tasks.tasks.run_task"

MAX_LOST_ATTEMPTS = 5
"""Maximum number of attempts that end with the worker, as one does that uses up its memory."""

UNAVAILABLE = (InterfaceError, OperationalError)
"""Errors of a database that cannot be reached."""

SECONDS_BETWEEN_TRIES = 10


class WorkerLost(Exception):
    """A task has ended its worker too often."""


# Its base is Celery's own, like that of all tasks that the outbox itself brings. The message is acknowledged when the
# task has ended, so a task is not lost with its worker.
@shared_task(
    name=NAME,
    base=Task,
    bind=True,
    ignore_result=True,
    acks_late=True,
    reject_on_worker_lost=True,
    # Celery's own default is 3, and an outage may last longer.
    max_retries=None,
)
def run_task(self: Any, payload: dict[str, Any]) -> None:
    """Run a task and store its result.

    A message that arrives again after the task has ended does nothing.

    Args:
        self: the task of Celery.
        payload: what `make_payload` has returned.

    Raises:
        Exception: whatever the task raises, after it was stored, so that Celery logs and reports it.
    """
    using = choose_database(options_of(payload["backend"]))
    try:
        record = _begin(self.request, payload, using)
    except UNAVAILABLE as error:
        raise self.retry(exc=error, countdown=SECONDS_BETWEEN_TRIES) from error
    if record is None:
        return
    try:
        if _count_lost(record) >= MAX_LOST_ATTEMPTS:
            raise WorkerLost(f"{MAX_LOST_ATTEMPTS} workers were lost while they ran this task.")
        succeed(record, call(record), using)
    except (KeyboardInterrupt, WorkerShutdown, WorkerTerminate):
        # The worker ends, and the broker delivers the message again.
        raise
    except BaseException as error:
        fail(record, error, final=True, using=using)
        _finish(record, error, using)
        if isinstance(error, Exception):
            raise
        # A worker's process would end by it.
        raise RuntimeError(f"The task raised {type(error).__name__}.") from error
    _finish(record, None, using)


def _begin(request: Any, payload: dict[str, Any], using: str) -> TaskRecord | None:
    """Store that a worker has begun the task, and return its record; None if the task has ended already."""
    now = timezone.now()
    with transaction.atomic(using=using):
        record = TaskRecord.objects.using(using).select_for_update().filter(message_id=request.id).first()
        if record is None:
            # It was purged.
            record = make_record(payload, request.id, now)
        elif record.finished_at is not None:
            return None
        begin(record, now, str(request.hostname)[:255])
        update(record, using)
    return record


def _count_lost(record: TaskRecord) -> int:
    """Return how many attempts have begun before this one, and not ended."""
    return len(record.worker_ids) - 1 - len(record.errors)


def _finish(record: TaskRecord, error: BaseException | None, using: str) -> None:
    """Store how the task has ended.

    Raises:
        Reject: the database cannot be reached, so the broker delivers the message again, and the task is repeated.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        # A server may have closed it during a long task. A task that is called eagerly is in its caller's transaction.
        connection.close_if_unusable_or_obsolete()
    try:
        update(record, using)
    except UNAVAILABLE as problem:
        raise Reject(problem, requeue=True) from problem
    announce(record, error, using)
