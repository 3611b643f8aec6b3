"""Store a task: a message for a relay, and a record for its result."""

from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import AnyResult, AnyTask, BackendOptions
from django_outbox.contrib.django_tasks.records import choose_database, make_payload, make_result
from django_outbox.db.transactions import check_task_transaction, outlive_connection
from django_outbox.enqueueing.enqueue import enqueue
from django_outbox.enqueueing.validation import check_name
from django_outbox.messages import DJANGO_TASK
from django_outbox.stores.dialect import Dialect


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
