"""The app class. Celery apps import it before Django's models are loaded, so it must not import them."""

from typing import TYPE_CHECKING, Any

from celery import Celery

from django_outbox.celery.calls import StoringProducer, prepare
from django_outbox.celery.context import sends_directly
from django_outbox.celery.task import AnyResult, OutboxTask

if TYPE_CHECKING:
    AnyCelery = Celery[Any]
else:
    AnyCelery = Celery


class OutboxCelery(AnyCelery):
    """A Celery app that stores all calls in the outbox, in the current transaction; a relay sends them.

    Its tasks are of the class `OutboxTask`. Calls by name are stored as well: `send_task()`, and signatures and beat
    entries of tasks that are not imported. A task with another base is sent directly, also by name.

    Attributes:
        outbox_publisher: the alias of the `CeleryPublisher` for calls of tasks that the app does not know.
        outbox_using: the alias of the database for these calls; by default the one that the router chooses for writing.
    """

    task_cls: Any = OutboxTask

    outbox_publisher: str = "celery"
    outbox_using: str | None = None

    def send_task(  # type: ignore[override]
        self,
        name: str,
        args: Any = None,
        kwargs: Any = None,
        *,
        task_id: str | None = None,
        producer: Any = None,
        using: str | None = None,
        **options: Any,
    ) -> AnyResult:
        """Store a call of the task with this name, and return its result.

        Takes the options of `OutboxTask.apply_async`. `task_always_eager` does not apply, as in Celery.

        Args:
            name: the name of the task. The app need not know it.
            task_id: the ID of the result, as in `OutboxTask.apply_async`.
            producer: ignored.
            using: the alias of the database that stores this call; `outbox_using` of the task or of the app by default.
            options: further options.

        Raises:
            InvalidMessage: the call cannot be stored, for example because its arguments are too large.
            TransactionRequired: a transaction is open, but only on another database than the one that stores the call,
                and `using` was not passed.
            SynchronousOnlyOperation: it was called in async code.
            kombu.exceptions.EncodeError: the arguments cannot be serialized.
        """
        task = self.tasks.get(name)
        # A task calls this method too, with its type; an OutboxTask with the producer that stores the call.
        is_of_task = options.get("task_type") is not None or isinstance(producer, StoringProducer)
        if is_of_task or sends_directly() or not isinstance(task, OutboxTask | None):
            return super().send_task(name, args, kwargs, task_id=task_id, producer=producer, **options)
        source = task or self
        ignore_result = options.pop("ignore_result", task and task.ignore_result)
        stored_by, options = prepare(self, source, task_id, using, options, ignore_result=ignore_result)
        task_id = stored_by.task_id.text
        result = super().send_task(name, args, kwargs, task_id=task_id, producer=stored_by, **options)
        result.ignored = ignore_result
        return result
