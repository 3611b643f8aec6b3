"""Django's tasks in Celery workers: store a task as a call of `run_task`, and run it.

Celery finds the module by its name.
"""

from typing import Any

from celery import Celery, Task, shared_task
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from django.db import InterfaceError, OperationalError, connections, transaction
from django.tasks import DEFAULT_TASK_QUEUE_NAME, task_backends
from django.tasks.base import TASK_MAX_PRIORITY
from django.utils import timezone

from django_outbox.brokers.celery.options import connect, find_app, is_amqp, is_redis
from django_outbox.celery.calls import StoringProducer
from django_outbox.celery.context import TaskId
from django_outbox.conf import get_settings
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.records import (
    announce,
    begin,
    call,
    choose_database,
    fail,
    make_payload,
    make_record,
    succeed,
    update,
)
from django_outbox.db.fields import uuid7

NAME = "django_outbox.contrib.django_tasks.tasks.run_task"

MAX_LOST_ATTEMPTS = 5
"""Maximum number of attempts that end with the worker, for example because they use up its memory."""

UNAVAILABLE = (InterfaceError, OperationalError)
"""Errors of a database that cannot be reached."""

SECONDS_BETWEEN_TRIES = 10

HIGHEST = 9
"""The highest number. In Redis, it is the least urgent one; in RabbitMQ the most urgent one of a queue without
`x-max-priority`: RabbitMQ 4 delivers messages above 4 first if it is a quorum queue."""


def store_call(record: TaskRecord, using: str) -> None:
    """Insert a message that starts a task in a Celery worker, and the record, which gets the ID of the message.

    With `task_always_eager`, the task is run at once, and no message is stored.
    """
    app = find_app(get_settings().publishers[record.publisher].options.get("app"))
    record.message_id = uuid7()
    task_id = str(record.message_id)
    runner = app.tasks[NAME]
    if app.conf.task_always_eager:
        record.save(force_insert=True, using=using)
        runner.apply_async((make_payload(record),), task_id=task_id)
        record.refresh_from_db(using=using)
        return
    due = record.run_after if record.run_after and record.run_after > timezone.now() else None
    producer: Any = StoringProducer(
        app, task_id=TaskId(task_id, is_new=True), publisher=record.publisher, using=using, due=due
    )
    runner.apply_async(
        (make_payload(record),),
        task_id=task_id,
        producer=producer,
        # Shown in Celery's logs, which would call every task `run_task`.
        shadow=record.path,
        # Passed as the option `eta`, Celery might hold the task a second time, in its queues for delayed delivery.
        headers={"eta": due.isoformat()} if due else {},
        retry=False,
        **_read_options(app, record),
    )
    record.save(force_insert=True, using=using)


def _read_options(app: Celery, record: TaskRecord) -> dict[str, Any]:
    # Django's default queue is the queue that Celery's own routing chooses; other queues have the same name in Celery.
    options = {} if record.queue_name == DEFAULT_TASK_QUEUE_NAME else {"queue": record.queue_name}
    if not record.priority:
        return options
    route = app.amqp.router.route(dict(options), NAME)
    return {**options, "priority": convert_priority(app, route, record.priority)}


def convert_priority(app: Celery, route: dict[str, Any], priority: int) -> int | None:
    """Return the priority of a message, in proportion; None if the broker has no priorities.

    Priority 0 of a task is `task_default_priority` of the app, 100 the most urgent one of the queue, and -100 the least
    urgent one. `route` is the route of the message, as Celery's router returns it.
    """
    connection = connect(app)
    if is_amqp(connection):
        queue = route.get("queue")
        arguments = getattr(queue, "queue_arguments", None) or {}
        most, least = getattr(queue, "max_priority", None) or arguments.get("x-max-priority") or HIGHEST, 0
    elif is_redis(connection):
        # In Redis, kombu reads the list of the lowest number first.
        most, least = 0, HIGHEST
    else:
        return None
    default: int = app.conf.task_default_priority or 0
    end = most if priority > 0 else least
    return round(default + (end - default) * abs(priority) / TASK_MAX_PRIORITY)


class WorkerLost(Exception):
    """A task has ended its worker too often."""


# With Celery's own base class, the outbox does not store calls of this task again. The message is acknowledged when
# the task has ended, so a task is not lost with its worker.
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
    """Run a task and store its result. A message that arrives again after the task has ended does nothing.

    An exception of the task is raised again after it was stored, so that Celery logs and reports it.
    """
    backend: Any = task_backends[payload["backend"]]
    using = choose_database(backend.outbox)
    try:
        record = _begin(self.request, payload, using)
    except UNAVAILABLE as error:
        raise self.retry(exc=error, countdown=SECONDS_BETWEEN_TRIES) from error
    if record is None:
        return
    try:
        # Earlier attempts that have begun, but not ended.
        lost = len(record.worker_ids) - 1 - len(record.errors)
        if lost >= MAX_LOST_ATTEMPTS:
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
        # It would end the process of the worker.
        raise RuntimeError(f"The task raised {type(error).__name__}.") from error
    _finish(record, None, using)


def _begin(request: Any, payload: dict[str, Any], using: str) -> TaskRecord | None:
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


def _finish(record: TaskRecord, error: BaseException | None, using: str) -> None:
    """Store the end of the task. If the database cannot be reached, the broker delivers the message again."""
    connection = connections[using]
    if not connection.in_atomic_block:
        # A server may have closed it during a long task. A task that is called eagerly is in its caller's transaction.
        connection.close_if_unusable_or_obsolete()
    try:
        update(record, using)
    except UNAVAILABLE as problem:
        raise Reject(problem, requeue=True) from problem
    announce(record, error, using)
