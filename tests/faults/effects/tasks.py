"""A Django task that leaves an effect, and the count of wrong results. Importing it needs Django 6.0."""

from django.tasks import TaskResultStatus, task

from django_outbox.contrib.django_tasks.models import TaskRecord
from tests.faults.effects.handlers import leave


@task
def work(number: int) -> int:
    """Leave an effect."""
    leave(number, "task")
    return number


def count_wrong(numbers: set[int]) -> int:
    """Return how many of these numbers have no result, or a wrong one, and how many results belong to none of them."""
    found = [
        record.args[0]
        for record in TaskRecord.objects.filter(status=TaskResultStatus.SUCCESSFUL)
        if record.args == [record.return_value] and record.worker_ids and len(record.errors) < len(record.worker_ids)
    ]
    unfinished = TaskRecord.objects.exclude(status=TaskResultStatus.SUCCESSFUL).count()
    return len(numbers.symmetric_difference(found)) + len(found) - len(set(found)) + unfinished
