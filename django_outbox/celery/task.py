"""The task class. Celery apps import it before Django's models are loaded, so it must not import them."""

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery import Celery, Task
from celery.result import AsyncResult
from celery.utils.time import maybe_iso8601, maybe_make_aware

from django_outbox.celery.producer import StoringProducer
from django_outbox.db.uuid7 import uuid7
from django_outbox.exceptions import InvalidMessage

if TYPE_CHECKING:
    AnyTask = Task[..., Any]
    AnyResult = AsyncResult[Any]
else:
    AnyTask, AnyResult = Task, AsyncResult

_sends_directly: ContextVar[bool] = ContextVar("django_outbox.celery.sends_directly", default=False)


class OutboxTask(AnyTask):
    """A Celery task whose calls are stored in the outbox, in the current transaction, and sent by a relay.

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
        **options: Any,
    ) -> AnyResult:
        """Store a call of the task, and return its result.

        The options are those of Celery. `producer` is ignored, because canvas passes one. `retry` and `retry_policy`
        are ignored, because the relay has its own retry policy. With `countdown` or `eta`, the outbox keeps the message
        until that time. With `task_always_eager`, the task is called at once, as by Celery itself.

        Args:
            args: positional arguments of the task.
            kwargs: keyword arguments of the task.
            task_id: the ID of the result; a new UUIDv7 by default, which is also the `message_id`. The `message_id` of
                an ID that is not a UUID is derived from it. A second call with the same ID stores nothing.
            producer: ignored.
            link: signatures to call with the result.
            link_error: signatures to call after an error.
            shadow: the name of the task in logs.
            options: further options, such as `queue`, `priority`, `expires`, `headers` or `serializer`.

        Raises:
            InvalidMessage: the call cannot be stored, for example because its arguments are too large.
            kombu.exceptions.EncodeError: the arguments cannot be serialized.
        """
        arguments = {"link": link, "link_error": link_error, "shadow": shadow}
        app = self.app
        if app.conf.task_always_eager or _sends_directly.get():
            return super().apply_async(args, kwargs, task_id, producer, **arguments, **options)
        if options.pop("connection", None) is not None:
            raise InvalidMessage("connection", "cannot be used: the relay sends the task. Leave it out.")
        task_id = task_id or str(uuid7())
        headers = dict(options.pop("headers", None) or {})
        eta, due = _read_eta(app, options.pop("countdown", None), options.pop("eta", None))
        if eta:
            # Passed as an option, Celery might hold the task a second time, in its queues for delayed delivery.
            headers["eta"] = eta
        # The backend must not be asked for the result before the transaction commits. Workers read the header.
        ignore_result = options.pop("ignore_result", self.ignore_result)
        headers["ignore_result"] = ignore_result
        options |= {"headers": headers, "ignore_result": True, "retry": False}
        storing: Any = StoringProducer(
            app, task_id=task_id, publisher=self.outbox_publisher, using=self.outbox_using, due=due
        )
        result = super().apply_async(args, kwargs, task_id, storing, **arguments, **options)
        result.ignored = ignore_result
        return result

    def retry(self, *args: Any, **kwargs: Any) -> Any:
        """Send the task again, directly to the broker; otherwise like Celery."""
        with _sending_directly():
            return super().retry(*args, **kwargs)

    def on_replace(self, sig: Any) -> Any:
        """Send the replacement directly to the broker; otherwise like Celery."""
        with _sending_directly():
            return super().on_replace(sig)


@contextmanager
def _sending_directly() -> Iterator[None]:
    token = _sends_directly.set(True)
    try:
        yield
    finally:
        _sends_directly.reset(token)


def _read_eta(app: Celery, countdown: float | None, eta: Any) -> tuple[str, datetime.datetime | None]:
    """Return the ETA as text for the worker, and as a time if the outbox has to wait for it."""
    now = app.now()
    if countdown:
        eta = now + datetime.timedelta(seconds=countdown)
    if not eta:
        return "", None
    due = maybe_iso8601(eta)
    assert due is not None
    due = maybe_make_aware(due, app.timezone)
    return eta if isinstance(eta, str) else eta.isoformat(), due if due > now else None
