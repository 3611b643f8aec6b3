"""The handler that runs tasks, in the transaction of a relay's claim or outside of any transaction."""

import threading
from typing import Any

from django.db import connections
from django.utils import timezone

from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.records import announce, begin, call, fail, make_record, succeed, update
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.publisher import current_database
from django_outbox.handlers.registry import Handler, registry
from django_outbox.messages import DJANGO_TASK, Message, Outcome, rejected
from django_outbox.utils.process import name_process
from django_outbox.utils.text import describe

NAME = "django_outbox.django_tasks"

_local = threading.local()
"""The record of the last attempt that this thread has begun, because a rollback undoes what was written of it."""


def register() -> None:
    if registry.find(NAME) is None:
        handler = Handler(run_task, (DJANGO_TASK,), NAME)
        handler.recorder = record_failure
        handler.finisher = record_success
        registry.add(handler)


def run_task(payload: Any, message: Message) -> Outcome | None:
    """Run a task. Outside of a transaction, the status `RUNNING` is stored first."""
    using = current_database()
    record = _begin(payload, message, using)
    if not connections[using].in_atomic_block:
        update(record, using)
    returned = call(record)
    try:
        succeed(record, returned, using)
    except (TypeError, ValueError, InvalidMessage) as error:
        # Another attempt would return the same.
        return rejected(describe(error), cause=error)
    return None


def record_success(message: Message, using: str) -> None:
    record: TaskRecord = _local.record
    update(record, using)
    announce(record, None, using)


def record_failure(payload: Any, message: Message, outcome: Outcome, final: bool, using: str) -> None:
    """Store the error of an attempt, after the attempt was rolled back."""
    record: TaskRecord | None = vars(_local).pop("record", None)
    if record is None or str(record.message_id) != message.message_id:
        record = _begin(payload, message, using)
    error = outcome.cause or RuntimeError(outcome.error)
    fail(record, error, final, using)
    update(record, using)
    if final:
        announce(record, error, using)


def _begin(payload: Any, message: Message, using: str) -> TaskRecord:
    _local.record = None
    record = _read_record(payload, message, using)
    begin(record, timezone.now(), name_process())
    _local.record = record
    return record


def _read_record(payload: Any, message: Message, using: str) -> TaskRecord:
    """Return the record of a task with the arguments in its message, which an operator may have edited."""
    record = TaskRecord.objects.using(using).filter(message_id=message.message_id).first()
    if record is None:
        # It was purged, because its message was requeued late.
        return make_record(payload, message.message_id, message.occurred_at)
    record.args, record.kwargs = payload["args"], payload["kwargs"]
    return record
