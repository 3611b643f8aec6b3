"""The calls of Celery tasks in the outbox: read them, and run them in this process. Needs Celery."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from celery import Celery, current_app
from celery.app.trace import build_tracer
from celery.exceptions import Retry
from kombu import serialization
from kombu.compression import decompress

from django_outbox.brokers.celery.encoding import NotATask, TaskMessage, unpack
from django_outbox.brokers.celery.options import find_app
from django_outbox.messages import Message
from django_outbox.utils.text import shorten

MAX_RETRIES = 100
"""Maximum number of retries, because a task may retry forever."""


class TaskCall(NamedTuple):
    """A stored call of a task."""

    message: TaskMessage
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    embedded: Mapping[str, Any]

    def __str__(self) -> str:
        values = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return shorten(f"{self.message.type}({', '.join(values)})", 200)

    def has(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        # The stubs lack the registry.
        registry: Any = vars(serialization)["registry"]
        serializer = registry.type_to_name[self.message.content_type]
        content_type, encoding, body = serialization.dumps([list(args), kwargs], serializer=serializer)
        found: list[Any] = _load(body, content_type, encoding)
        return found == [list(self.args), self.kwargs]


def read_call(message: Message) -> TaskCall | None:
    """Return the call that a message holds; None if it was not stored by an `OutboxTask`."""
    try:
        task = unpack(message, datetime.datetime.now(datetime.timezone.utc))
    except NotATask:
        return None
    compression = message.headers.get("compression")
    body = decompress(task.payload, compression) if compression else task.payload
    args, kwargs, embedded = _load(body, task.content_type, task.content_encoding)
    return TaskCall(task, args, kwargs, embedded)


def run(call: TaskCall, app_path: str | None) -> Exception | None:
    """Run a task as a worker does, without a result backend; return the exception that it has raised, if any.

    Retries follow at once, up to `MAX_RETRIES`. The next task of a chain, and callbacks, are stored in the outbox.
    `app_path` is the path of the Celery app; None for Celery's current app.
    """
    app: Celery = current_app if app_path is None else find_app(app_path)
    name = call.message.type
    if name not in app.tasks:
        return LookupError(f"the Celery app {app.main!r} has no task {name!r}")
    task = app.tasks[name]
    headers = {**call.message.headers}
    request = {**headers, **call.embedded, "is_eager": True, "delivery_info": {"is_eager": True}, "headers": headers}
    args, kwargs = call.args, call.kwargs
    tracer: Any = build_tracer(name, task, app=app, eager=True, propagate=False)
    for _ in range(MAX_RETRIES + 1):
        outcome = tracer(headers["id"], args, kwargs, request)
        if outcome.info is None:
            return None
        reason: Any = outcome.info.retval
        if not isinstance(reason, Retry):
            return reason if isinstance(reason, Exception) else None
        request["retries"] = (request.get("retries") or 0) + 1
        signature: Any = vars(reason).get("sig")
        if signature is not None:
            args, kwargs = signature.args, signature.kwargs
    return RuntimeError(
        f"the task {name!r} was retried {MAX_RETRIES} times, and still asks for another retry: give it max_retries, or "
        "let the test make what it waits for come true"
    )


def _load(body: Any, content_type: str, encoding: str) -> Any:
    return serialization.loads(body, content_type, encoding, accept={content_type})
