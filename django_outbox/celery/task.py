"""The task class.

Celery apps import it before Django's models are loaded, so it must not import them.
"""

from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from celery import Task
from celery.result import AsyncResult

from django_outbox.celery.calls import prepare
from django_outbox.celery.context import sending_directly, sends_directly

if TYPE_CHECKING:
    AnyResult = AsyncResult[Any]
    AnyTask = Task[..., Any]
else:
    AnyResult = AsyncResult
    AnyTask = Task


class OutboxTask(AnyTask):
    """A Celery task: its calls are stored in the outbox, in the current transaction, and sent by a relay.

    Use it for all tasks of an app, with `Celery("shop", task_cls=OutboxTask)`, or for single ones, with
    `@shared_task(base=OutboxTask)`. `delay()`, `apply_async()` and the canvas (`chain`, `group`, `chord`) keep their
    signatures. Outside a transaction, the call is stored in its own transaction. A worker's `self.retry()` and
    `self.replace()` are sent directly, because they end the task with an exception, which would roll the call back.

    Attributes:
        outbox_publisher: the alias of a `CeleryPublisher` in `OUTBOX["PUBLISHERS"]`.
        outbox_using: the database alias; by default the one that the router chooses for writing.
    """

    abstract = True

    outbox_publisher: str = "celery"
    outbox_using: str | None = None

    def apply_async(  # noqa: PLR0917 - as in Celery
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        using: str | None = None,
        **options: Any,
    ) -> AnyResult:
        """Store a call of the task, and return its result.

        It takes Celery's options. `producer` is ignored, because canvas passes one. `retry` and `retry_policy` are
        ignored, because the relay has its own retry policy. With `countdown` or `eta`, the outbox keeps the message
        until that time. With `task_always_eager`, the task is called at once, as by Celery itself.

        Args:
            task_id: the ID of the result; a new UUIDv7 by default, which is also the `message_id`. The `message_id` of
                an ID that is not a UUID is derived from it. A second call with the same ID is left out and logged.
            producer: ignored.
            link: signatures to call with the result.
            link_error: signatures to call after an error.
            shadow: the name of the task in logs.
            using: the alias of the database that stores this call; `outbox_using` by default.
            options: further options, such as `queue`, `priority`, `expires`, `headers` or `serializer`.

        Raises:
            InvalidMessage: the call cannot be stored, for example because its arguments are too large.
            TransactionRequired: a transaction is open, but only on another database than the one that stores the call,
                and `using` was not passed.
            SynchronousOnlyOperation: it was called in async code; use `aapply_async` or `adelay`.
            kombu.exceptions.EncodeError: the arguments cannot be serialized.
        """
        arguments = {"link": link, "link_error": link_error, "shadow": shadow}
        app = self.app
        if app.conf.task_always_eager or sends_directly():
            return super().apply_async(args, kwargs, task_id, producer, **arguments, **options)
        ignore_result = options.pop("ignore_result", self.ignore_result)
        stored_by, options = prepare(app, self, task_id, using, options, ignore_result=ignore_result)
        result = super().apply_async(args, kwargs, stored_by.task_id.text, stored_by, **arguments, **options)
        result.ignored = ignore_result
        return result

    async def adelay(self, *args: Any, **kwargs: Any) -> AnyResult:
        """Do the same as `delay`, in async code. The call is stored in its own transaction."""
        return await sync_to_async(self.delay)(*args, **kwargs)

    async def aapply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> AnyResult:
        """Do the same as `apply_async`, in async code. The call is stored in its own transaction."""
        return await sync_to_async(self.apply_async)(args, kwargs, **options)

    def delay_on_commit(self, *args: Any, **kwargs: Any) -> AnyResult:
        """Do the same as `delay`, which sends the call after the commit in any case."""
        return self.delay(*args, **kwargs)

    def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> AnyResult:
        """Do the same as `apply_async`, which sends the call after the commit in any case."""
        return self.apply_async(*args, **kwargs)

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task again, directly to the broker; otherwise like Celery."""
        with sending_directly():
            return super().retry(*args, **kwargs)

    def on_replace(self, sig: Any) -> Any:
        """Send the replacement directly to the broker; otherwise like Celery.

        `apply()` runs the replacement at once, and calls in it are stored.
        """
        if self.request.is_eager:
            return super().on_replace(sig)
        with sending_directly():
            return super().on_replace(sig)
