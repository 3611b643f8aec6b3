"""The backend of Django Tasks. It is imported wherever a task is defined, so it imports no models."""

import uuid
from typing import Any, TypeAlias

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.base import Task, TaskResult
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json

from django_outbox.contrib.django_tasks.options import DEFAULT_PUBLISHER, Problem, find_problems

# At runtime, Django's classes take no type arguments.
AnyTask: TypeAlias = "Task[..., Any]"
AnyResult: TypeAlias = "TaskResult[..., Any]"


class OutboxBackend(BaseTaskBackend):
    """Stores tasks in the outbox, in the caller's transaction; a relay runs them.

    Args:
        alias: the backend's alias in `TASKS`.
        params: its entry. `OPTIONS` may have `database` (the alias of the database; by default the one that the router
            chooses for writing messages), `publisher` (the alias of a `HandlersPublisher`, "handlers" by default),
            `queues` (a dict with other publishers for some queues) and `result_retention` (a timedelta, 7 days by
            default; None keeps results forever).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    # The outbox delivers in the order of enqueueing.
    supports_priority = False

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:  # type: ignore[override]
        """Store a task, in the caller's transaction if one is open on that database, otherwise in its own.

        Raises:
            InvalidTask: the task cannot be run by this backend.
            ImproperlyConfigured: the configuration of the backend is wrong.
            TypeError: an argument is not JSON.
            ValueError: an argument is bytes that are not UTF-8.
            InvalidMessage: the database would not return the arguments unchanged, or they are too large. Nothing was
                written, and the transaction can continue.
        """
        self.validate_task(task)
        if problem := next(iter(self._find_problems()), None):
            raise ImproperlyConfigured(f"{problem.message} {problem.hint}")
        from django_outbox.contrib.django_tasks.handler import register  # noqa: PLC0415 - needs the models
        from django_outbox.contrib.django_tasks.records import store_task  # noqa: PLC0415 - needs the models

        # TASKS may have changed since the app started, as in a test.
        register()
        result = store_task(self, task, normalize_json(args), normalize_json(kwargs))
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> AnyResult:
        """Return a result as it was last committed.

        Raises:
            TaskResultDoesNotExist: there is none with this ID; it may have been purged.
            ImportError: the task's function does not exist any more.
        """
        from django_outbox.contrib.django_tasks.records import find_result  # noqa: PLC0415 - needs the models

        try:
            result = find_result(self, uuid.UUID(str(result_id)))
        except ValueError:
            result = None
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def choose_publisher(self, queue_name: str) -> str:
        """Return the alias of the publisher that runs the tasks of a queue."""
        alias: str = self.options.get("queues", {}).get(queue_name) or self.options.get("publisher", DEFAULT_PUBLISHER)
        return alias

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [Error(problem.message, hint=problem.hint, id=problem.check_id) for problem in self._find_problems()]

    def _find_problems(self) -> list[Problem]:
        return [*find_problems(self.alias, self.options, self.queues)]
