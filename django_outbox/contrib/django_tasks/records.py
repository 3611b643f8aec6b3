"""The tasks in the database: store a task and what an attempt has done, read results, and purge old ones."""

import datetime
import traceback
import uuid
from collections.abc import Callable
from typing import Any

from django.apps import apps
from django.db import connections, router, transaction
from django.db.models import Exists, OuterRef
from django.dispatch import Signal
from django.tasks import task_backends
from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
from django.tasks.signals import task_finished, task_started
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from django_outbox.conf import get_settings
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import AnyResult, AnyTask, BackendOptions
from django_outbox.db.functions import DatabaseNow
from django_outbox.db.transactions import check_task_transaction, outlive_connection
from django_outbox.enqueueing.enqueue import enqueue
from django_outbox.enqueueing.validation import check_json, check_name
from django_outbox.messages import DJANGO_TASK
from django_outbox.models import OutboxMessage, Status
from django_outbox.retention.purge import MAX_AGE, delete_in_batches
from django_outbox.stores.dialect import Dialect
from django_outbox.utils.text import stand_in

MAX_ERRORS = 20
"""Maximum number of errors in a result: the newest ones."""

MAX_TRACEBACK_LENGTH = 10_000
"""Maximum number of characters of a stored traceback: its end."""

CHANGING = ("status", "started_at", "last_attempted_at", "finished_at", "return_value", "errors", "worker_ids")
"""The fields that an attempt writes."""

IN_PAYLOAD = ("backend", "queue_name", "args", "kwargs")
"""The fields that are in the payload of the task's message as well."""

IN_RESULT = ("enqueued_at", "started_at", "finished_at", "last_attempted_at", "args", "kwargs", "backend")
"""The fields that are the same in Django's result of a task."""

_MESSAGE = OutboxMessage.objects.filter(message_id=OuterRef("message_id"), publisher=OuterRef("publisher"))


def choose_database(options: BackendOptions) -> str:
    return options.values.get("database") or router.db_for_write(OutboxMessage)


def store_task(options: BackendOptions, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:
    """Insert a message and a record, both or none. Raises the errors of `OutboxBackend.enqueue`."""
    using = choose_database(options)
    record = TaskRecord(
        path=task.module_path,
        backend=options.alias,
        queue_name=task.queue_name,
        publisher=options.publisher,
        args=args,
        kwargs=kwargs,
        run_after=task.run_after,
        enqueued_at=timezone.now(),
    )
    in_transaction = check_task_transaction(
        task.module_path,
        using=using,
        instead="await task.aenqueue(...)",
        remedy="Did you mean a backend in TASKS with the option 'database': {0!r}? If so, choose it with "
        "task.using(backend=...)",
    )
    connection = connections[using]
    check_name("queue_name", record.queue_name, Dialect(connection))
    if in_transaction or connection.in_atomic_block:
        # The caller's block rolls back both rows; a nested block would be marked for rollback by an invalid argument.
        _store(record, using)
    else:
        outlive_connection(connection, lambda again: _store_alone(record, using, again=again))
    return make_result(record, task)


def _store_alone(record: TaskRecord, using: str, *, again: bool) -> None:
    with transaction.atomic(using=using):
        if not (again and TaskRecord.objects.using(using).filter(pk=record.pk).exists()):
            _store(record, using)


def _store(record: TaskRecord, using: str) -> None:
    message = enqueue(
        DJANGO_TASK,
        make_payload(record),
        topic=record.path,
        available_at=record.run_after,
        publisher=record.publisher,
        using=using,
        require_transaction=False,
    )
    record.message_id = message.message_id
    record.save(force_insert=True, using=using)


def find_result(options: BackendOptions, message_id: uuid.UUID) -> "AnyResult | None":
    using = choose_database(options)
    record = TaskRecord.objects.using(using).filter(message_id=message_id, backend=options.alias).first()
    if record is None:
        return None
    _follow_message(record, using)
    return make_result(record, find_task(record))


def _follow_message(record: TaskRecord, using: str) -> None:
    """Update the record of a message that an operator has cancelled, requeued, discarded or delivered again."""
    messages = OutboxMessage.objects.using(using)
    message = messages.filter(message_id=record.message_id, publisher=record.publisher).first()
    if message is None or message.status == Status.FAILED:
        # It may have ended after the record was read.
        record.refresh_from_db(using=using)
        if record.status != TaskResultStatus.SUCCESSFUL:
            record.status = TaskResultStatus.FAILED
            record.finished_at = record.finished_at or (message.failed_at if message else None)
    elif message.status == Status.PENDING:
        at = message.available_at
        # A relay that runs the task has moved the time of the message ahead. It stores success with the message.
        if record.status != TaskResultStatus.RUNNING or at is None or at <= timezone.now():
            record.status = TaskResultStatus.READY
            record.finished_at = None


def make_payload(record: TaskRecord) -> dict[str, Any]:
    return {"task": record.path, **{name: getattr(record, name) for name in IN_PAYLOAD}}


def find_task(record: TaskRecord) -> AnyTask:
    """Return the task of a record. Raises ImportError or InvalidTask if it does not exist any more."""
    task = import_string(record.path)
    if not isinstance(task, Task):
        raise ImportError(f"{record.path} is not a task any more. Decorate it with @task.")
    return task.using(queue_name=record.queue_name, run_after=record.run_after, backend=record.backend)


def make_result(record: TaskRecord, task: AnyTask) -> AnyResult:
    result: AnyResult = TaskResult(
        task=task,
        id=str(record.message_id),
        status=TaskResultStatus(record.status),
        errors=[TaskError(**error) for error in record.errors],
        worker_ids=[*record.worker_ids],
        **{name: getattr(record, name) for name in IN_RESULT},
    )
    object.__setattr__(result, "_return_value", record.return_value)
    return result


def make_record(payload: Any, message_id: str, enqueued_at: datetime.datetime) -> TaskRecord:
    """Return a record, which is never stored, for a task with a record that was purged."""
    values = {name: payload[name] for name in IN_PAYLOAD}
    return TaskRecord(message_id=uuid.UUID(message_id), path=payload["task"], enqueued_at=enqueued_at, **values)


def begin(record: TaskRecord, now: datetime.datetime, worker_id: str) -> None:
    record.status = TaskResultStatus.RUNNING
    record.started_at = record.started_at or now
    record.last_attempted_at = now
    record.finished_at = None
    record.worker_ids = [*record.worker_ids, worker_id]


def call(record: TaskRecord) -> Any:
    result = make_result(record, find_task(record))
    _send(task_started, result)
    context = [TaskContext(task_result=result)] if result.task.takes_context else []
    return result.task.call(*context, *result.args, **result.kwargs)


def succeed(record: TaskRecord, returned: Any, using: str) -> None:
    """Note in a record that the task has returned, or raise an error if its value cannot be stored."""
    value = normalize_json(returned)
    check_json("return_value", value, Dialect(connections[using]))
    record.return_value = value
    record.status = TaskResultStatus.SUCCESSFUL
    record.finished_at = timezone.now()


def fail(record: TaskRecord, error: BaseException, final: bool, using: str) -> None:
    """Note in a record that an attempt failed, for good if `final`."""
    record.return_value = None
    record.errors = [*record.errors, describe_error(error, Dialect(connections[using]))][-MAX_ERRORS:]
    record.status = TaskResultStatus.FAILED if final else TaskResultStatus.READY
    record.finished_at = timezone.now() if final else None


def update(record: TaskRecord, using: str) -> None:
    """Store the changes of an attempt, if the record is stored."""
    changes = {name: getattr(record, name) for name in CHANGING}
    TaskRecord.objects.using(using).filter(message_id=record.message_id).update(**changes)


def announce(record: TaskRecord, error: BaseException | None, using: str) -> None:
    """Send `task_finished` after the commit; if there is an error, within an `except` block, so that Django logs it."""
    try:
        result = make_result(record, find_task(record))
    except Exception:
        # The attempt failed because there is no such task, and the signal needs one.
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


def describe_error(error: BaseException, dialect: Dialect) -> dict[str, str]:
    """Return the fields of Django's `TaskError`, in characters that the database can store."""
    kind = type(error)
    # Texts of exceptions are on one line and quote no rows of the database, as everywhere in the outbox.
    text = "".join(traceback.format_exception(stand_in(error)))
    return {
        "exception_class_path": dialect.storable(f"{kind.__module__}.{kind.__qualname__}"),
        "traceback": dialect.storable(text[-MAX_TRACEBACK_LENGTH:]),
    }


def purge_results(using: str, is_stopping: Callable[[], bool]) -> int:
    """Delete results that are older than `OUTBOX["RETENTION"]`; return their number.

    Age is the time since the task finished, or since it was enqueued if it will never finish because its message was
    discarded or deleted.
    """
    retention = get_settings().retention
    tasks: Any = apps.get_app_config("outbox_tasks")
    if retention is None or using not in {choose_database(each.outbox) for each in tasks.find_backends()}:
        return 0
    limit = DatabaseNow() - min(retention, MAX_AGE)
    records = TaskRecord.objects.using(using).order_by("finished_at", "enqueued_at")
    finished = delete_in_batches(records.filter(finished_at__lt=limit), is_stopping)
    unfinished = records.filter(finished_at=None, enqueued_at__lt=limit)
    return finished + delete_in_batches(unfinished.exclude(Exists(_MESSAGE)), is_stopping)
