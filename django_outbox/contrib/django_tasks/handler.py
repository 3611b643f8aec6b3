"""The handler that runs tasks, in the transaction of a relay's claim."""

import os
import socket
import threading
from typing import Any

from django.utils import timezone

from django_outbox.contrib.django_tasks.attempts import announce, begin, call, fail, make_record, succeed, update
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.records import TYPE
from django_outbox.error_text import describe
from django_outbox.exceptions import InvalidMessage
from django_outbox.handlers.registry import Handler, registry
from django_outbox.handlers.running import current_database
from django_outbox.messages import Message, Outcome, rejected

NAME = "django_outbox.django_tasks"

_local = threading.local()
"""The task that this thread has begun last, and when: what an attempt writes to the database is rolled back."""


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
    begin(record, now, _worker_id())
    returned = call(record)
    try:
        succeed(record, returned, using)
    except (TypeError, ValueError, InvalidMessage) as error:
        # Another attempt would return the same.
        return rejected(describe(error), cause=error)
    update(record, using)
    announce(record, None, using)
    return None


def record_failure(payload: Any, message: Message, outcome: Outcome, final: bool, using: str) -> None:
    """Store the error of an attempt, after everything that the attempt wrote was rolled back."""
    record = _read_record(payload, message, using)
    message_id, begun_at = getattr(_local, "begun", (None, None))
    begin(record, begun_at if message_id == record.message_id and begun_at else timezone.now(), _worker_id())
    error = outcome.cause or RuntimeError(outcome.error)
    fail(record, error, final, using)
    update(record, using)
    if final:
        announce(record, error, using)


def _read_record(payload: Any, message: Message, using: str) -> TaskRecord:
    """Return the record of a task with the arguments in its message, which an operator may have edited."""
    record = TaskRecord.objects.using(using).filter(message_id=message.message_id).first()
    if record is None:
        # It was purged, because its message was requeued late.
        return make_record(payload, message.message_id, message.occurred_at)
    record.args, record.kwargs = payload["args"], payload["kwargs"]
    return record


def _worker_id() -> str:
    # The same name as that of the relay's heartbeat.
    return f"{socket.gethostname()[:240]}:{os.getpid()}"
