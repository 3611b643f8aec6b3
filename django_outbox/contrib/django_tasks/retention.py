"""Delete old results, in batches."""

from collections.abc import Callable

from django.db.models import Exists, OuterRef, QuerySet

from django_outbox.contrib.django_tasks.models import TaskRecord
from django_outbox.contrib.django_tasks.options import all_options
from django_outbox.contrib.django_tasks.records import choose_database
from django_outbox.db.functions import DatabaseNow
from django_outbox.models import OutboxMessage
from django_outbox.retention.purge import MAX_AGE, PURGE_BATCH_SIZE

__all__ = ["purge_results"]


_MESSAGE = OutboxMessage.objects.filter(message_id=OuterRef("message_id"), publisher=OuterRef("publisher"))


def purge_results(using: str, is_stopping: Callable[[], bool]) -> int:
    """Delete results that are older than their backend's `result_retention`; return their number.

    The age is that since the task has finished. If it never will, because its message was discarded or deleted, it is
    that since the task was enqueued.

    Args:
        using: the database alias.
        is_stopping: called before each batch; if it returns True, the purge ends.
    """
    total = 0
    for options in all_options():
        if options.result_retention is not None and choose_database(options) == using:
            limit = DatabaseNow() - min(options.result_retention, MAX_AGE)
            records = TaskRecord.objects.using(using).filter(backend=options.alias)
            total += _delete(records.filter(finished_at__lt=limit), is_stopping)
            unfinished = records.filter(finished_at=None, enqueued_at__lt=limit)
            total += _delete(unfinished.exclude(Exists(_MESSAGE)), is_stopping)
    return total


def _delete(old: "QuerySet[TaskRecord]", is_stopping: Callable[[], bool]) -> int:
    total = 0
    while not is_stopping():
        # MySQL has no LIMIT in a subquery of DELETE.
        ids = [*old.order_by("finished_at", "enqueued_at").values_list("pk", flat=True)[:PURGE_BATCH_SIZE]]
        total += old.filter(pk__in=ids).delete()[0]
        if len(ids) < PURGE_BATCH_SIZE:
            break
    return total
