"""Priorities of Django's tasks, from -100 to 100, as those of a Celery app's broker."""

from typing import Any

from celery import Celery
from django.tasks.base import TASK_MAX_PRIORITY

from django_outbox.brokers.celery.apps import connect, is_amqp, is_redis

HIGHEST = 9
"""The highest number. In Redis, it is the least urgent one; in RabbitMQ the most urgent one of a queue without
`x-max-priority`: RabbitMQ 4 delivers messages above 4 first if it is a quorum queue."""


def convert_priority(app: Celery, route: dict[str, Any], priority: int) -> int | None:
    """Return the priority of a message, in proportion; None if the broker has no priorities.

    A task's priority 0 is `task_default_priority` of the app, 100 is the most urgent of the queue, and -100 the least.

    Args:
        app: the Celery app.
        route: the route of the message, as Celery's router returns it.
        priority: the priority of the task, from -100 to 100.
    """
    connection = connect(app)
    if is_amqp(connection):
        most, least = _read_max_priority(route.get("queue")) or HIGHEST, 0
    elif is_redis(connection):
        # In Redis, kombu reads the list of the lowest number first.
        most, least = 0, HIGHEST
    else:
        return None
    default: int = app.conf.task_default_priority or 0
    end = most if priority > 0 else least
    return round(default + (end - default) * abs(priority) / TASK_MAX_PRIORITY)


def _read_max_priority(queue: Any) -> int | None:
    found: int | None = getattr(queue, "max_priority", None)
    return found or (getattr(queue, "queue_arguments", None) or {}).get("x-max-priority")
