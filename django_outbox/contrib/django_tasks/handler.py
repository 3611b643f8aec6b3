"""The handler that runs tasks, in the transaction of a relay's claim."""

import datetime
import os
import socket
import threading
import uuid
from contextlib import suppress
from typing import Any

from django.db import connections, transaction
from django.dispatch import Signal
from django.tasks import task_backends
from django.tasks.base import TaskContext, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from django_outbox.contrib.django_tasks.backend import AnyResult, OutboxBackend
from django_outbox.contrib.django_tasks.errors import describe_error
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.records import TYPE, find_task, make_result
from django_outbox.enqueueing.json_checks import check_json
from django_outbox.error_text import describe
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.registry import Handler, registry
from django_outbox.handlers.running import current_database
from django_outbox.messages import Message, Outcome, rejected
from django_outbox.stores import get_store

NAME = "django_outbox.django_tasks"

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

_local = threading.local()
"""The task that this thread has begun last, and when: what an attempt writes to the database is rolled back."""


def is_configured() -> bool:
    """Return whether `TASKS` has an `OutboxBackend`."""
    for entry in task_backends.settings.values():
        # Django reports a path that cannot be imported.
        with suppress(ImportError, KeyError):
            backend = import_string(entry["BACKEND"])
            if isinstance(backend, type) and issubclass(backend, OutboxBackend):
                return True
    return False


def register() -> None:
    """Register the handler, unless it is registered."""
    if registry.find(NAME) is None:
        handler = Handler(run_task, (TYPE,), NAME)
        handler.recorder = record_failure
        registry.add(handler)


def run_task(payload: Any, message: Message) -> Outcome | None:
    """Run a task and store its result in the same savepoint.

    Raises:
        BaseException: whatever the task raises.
    """
    using = current_database()
    record = _read_record(payload, message, using)
    now = timezone.now()
    _local.begun = record.message_id, now
    _begin(record, now)
    result = make_result(record, find_task(record))
    _send(task_started, result)
    context = [TaskContext(task_result=result)] if result.task.takes_context else []
    returned = result.task.call(*context, *result.args, **result.kwargs)
    try:
        record.return_value = normalize_json(returned)
        check_json("return_value", record.return_value, get_store(connections[using]))
    except (TypeError, ValueError, InvalidMessage) as error:
        # Another attempt would return the same.
        return rejected(describe(error), cause=error)
    record.status = TaskResultStatus.SUCCESSFUL
    record.finished_at = timezone.now()
    _update(record, using)
    _announce(make_result(record, result.task), None, using)
    return None


def record_failure(payload: Any, message: Message, outcome: Outcome, final: bool, using: str) -> None:
    """Store the error of an attempt, after everything that the attempt wrote was rolled back."""
    record = _read_record(payload, message, using)
    message_id, begun_at = getattr(_local, "begun", (None, None))
    _begin(record, begun_at if message_id == record.message_id and begun_at else timezone.now())
    error = outcome.cause or RuntimeError(outcome.error)
    described = describe_error(error, get_store(connections[using]))
    record.errors = [*record.errors, described][-MAX_ERRORS:]
    record.status = TaskResultStatus.FAILED if final else TaskResultStatus.READY
    record.finished_at = timezone.now() if final else None
    _update(record, using)
    if final:
        try:
            task = find_task(record)
        except Exception:
            # The attempt failed because of that, and the signal needs a task.
            return
        _announce(make_result(record, task), error, using)


def _read_record(payload: Any, message: Message, using: str) -> TaskRecord:
    """Return the record of a task with the arguments in its message, which an operator may have edited.

    A record that was purged, because its message was requeued late, is replaced by one that is never stored.
    """
    found = TaskRecord.objects.using(using).filter(message_id=message.message_id).first()
    record = found or TaskRecord(
        message_id=uuid.UUID(message.message_id),
        path=payload["task"],
        backend=payload["backend"],
        queue_name=payload["queue_name"],
        enqueued_at=message.occurred_at,
    )
    record.args, record.kwargs = payload["args"], payload["kwargs"]
    return record


def _begin(record: TaskRecord, now: datetime.datetime) -> None:
    record.status = TaskResultStatus.RUNNING
    record.started_at = record.started_at or now
    record.last_attempted_at = now
    record.finished_at = None
    # The same name as that of the relay's heartbeat.
    record.worker_ids = [*record.worker_ids, f"{socket.gethostname()[:240]}:{os.getpid()}"]


def _update(record: TaskRecord, using: str) -> None:
    changes = {name: getattr(record, name) for name in CHANGING}
    TaskRecord.objects.using(using).filter(message_id=record.message_id).update(**changes)


def _announce(result: AnyResult, error: BaseException | None, using: str) -> None:
    """Send `task_finished` after the commit; if there is an error, within an `except` block, so that Django logs it."""

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
