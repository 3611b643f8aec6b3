"""The backend of Django Tasks. It is imported wherever a task is defined, so it imports no models."""

import uuid
from typing import Any

from django.core.checks import CheckMessage
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import TaskResultDoesNotExist
from django.tasks.signals import task_enqueued
from django.utils.json import normalize_json

from django_outbox.contrib.django_tasks.options import (
    AnyResult,
    AnyTask,
    BackendOptions,
    find_problems,
)


class OutboxBackend(BaseTaskBackend):
    """Stores tasks in the outbox, in the caller's transaction; a relay runs them.

    Args:
        alias: the backend's alias in `TASKS`.
        params: its entry. `OPTIONS` may have `database` (the alias of the database; by default the one that the router
            chooses for writing messages) and `publisher` (the alias of a `HandlersPublisher`, "handlers" by default).
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.outbox = BackendOptions(alias, self.options or {})

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> AnyResult:  # type: ignore[override]
        """Store a task, in the caller's transaction if one is open on that database, otherwise in its own.

        Raises:
            InvalidTask: the task cannot be run by this backend.
            ImproperlyConfigured: the configuration of the backend is wrong.
            TypeError: an argument is not JSON.
            ValueError: an argument is bytes that are not UTF-8.
            InvalidMessage: the database would not return the arguments or the name of the queue unchanged, or they are
                too large. Nothing was written, and the transaction can continue.
            TransactionRequired: a transaction is open, but only on another database than this backend's.
            SynchronousOnlyOperation: it was called in async code; use `aenqueue`.
        """
        self.validate_task(task)
        for problem in find_problems(self.outbox):
            raise problem
        from django_outbox.contrib.django_tasks.handler import register  # noqa: PLC0415 - needs the models
        from django_outbox.contrib.django_tasks.records import store_task  # noqa: PLC0415 - needs the models

        # The configuration may have changed since the app started, as in a test.
        register()
        result = store_task(self.outbox, task, normalize_json(args), normalize_json(kwargs))
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
            result = find_result(self.outbox, uuid.UUID(str(result_id)))
        except ValueError:
            result = None
        if result is None:
            raise TaskResultDoesNotExist(result_id)
        return result

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [problem.as_check for problem in find_problems(self.outbox)]
