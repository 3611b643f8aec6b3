"""Store a task as a message for Celery workers."""

from typing import Any

from celery import Celery
from django.tasks import DEFAULT_TASK_QUEUE_NAME
from django.utils import timezone

from django_outbox.brokers.celery.apps import find_app
from django_outbox.celery.calls import StoringProducer
from django_outbox.celery.context import TaskId
from django_outbox.conf import get_settings
from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.priorities import convert_priority
from django_outbox.contrib.django_tasks.records import make_payload
from django_outbox.contrib.django_tasks.tasks import NAME
from django_outbox.db.fields import uuid7


def store_call(record: TaskRecord, using: str) -> None:
    """Insert a message that starts a task in a Celery worker, and the record, which gets its ID.

    With `task_always_eager`, the task is run at once, and no message is stored.

    Args:
        record: the record, which has not been saved.
        using: the database alias.

    Raises:
        InvalidMessage: a value is invalid. Nothing was written, and the transaction can continue.
        ImproperlyConfigured: the Celery app of the publisher cannot be imported.
        celery.exceptions.QueueNotFound: the Celery app does not know the queue, and may not create it.
    """
    app = find_app(get_settings().publishers[record.publisher].options.get("app"))
    record.message_id = uuid7()
    task_id = str(record.message_id)
    call = app.tasks[NAME]
    if app.conf.task_always_eager:
        record.save(force_insert=True, using=using)
        call.apply_async((make_payload(record),), task_id=task_id)
        record.refresh_from_db(using=using)
        return
    due = record.run_after if record.run_after and record.run_after > timezone.now() else None
    producer: Any = StoringProducer(
        app, task_id=TaskId(task_id, is_new=True), publisher=record.publisher, using=using, due=due
    )
    call.apply_async(
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
    """Return the options that say where the message goes and how urgent it is."""
    # Other queues have the same name in Celery; this one is what Celery's own routing chooses.
    options = {} if record.queue_name == DEFAULT_TASK_QUEUE_NAME else {"queue": record.queue_name}
    if not record.priority:
        return options
    route = app.amqp.router.route(dict(options), NAME)
    return {**options, "priority": convert_priority(app, route, record.priority)}
