"""Celery apps of the tests, in the test's process and in workers. Everything that they write has its own prefix."""

import datetime
from typing import Any

from celery import Celery
from django.conf import settings
from django.db import transaction

from django_outbox.celery import OutboxTask

app: Celery | None = None
"""The app of the running test; publishers find it by the path `tests.support.celery_app:app`."""


def make_app(broker: str, prefix: str, **conf: Any) -> Celery:
    """Return an app with the tasks below.

    Args:
        broker: its URL.
        prefix: the name of its default queue, and the beginning of every key in Redis.
        conf: further settings.
    """
    made: Celery[Any] = Celery(
        "outbox_tests", task_cls=OutboxTask, set_as_current=False, broker=broker, backend=settings.REDIS_URL
    )
    made.conf.update(
        task_default_queue=prefix,
        result_backend_transport_options={"global_keyprefix": prefix},
        broker_transport_options={"global_keyprefix": prefix} if broker.startswith("redis") else {},
        broker_connection_retry_on_startup=False,
        worker_hijack_root_logger=False,
        result_expires=600,
        timezone="Europe/Zurich",
        **conf,
    )
    functions: list[Any] = [add, total, echo, describe, fail, note]
    for function in functions:
        made.task(name=f"tests.{function.__name__}", shared=False)(function)
    for function in (retry_in_transaction, replace_in_transaction, call_another, describe_request):
        made.task(name=f"tests.{function.__name__}", shared=False, bind=True)(function)
    return made


def add(a: int, b: int) -> int:
    return a + b


def total(numbers: list[int]) -> int:
    return sum(numbers)


def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


def describe(*args: Any, **kwargs: Any) -> str:
    """Return the arguments as Python writes them, so that no type is lost on the way back."""
    return repr((args, kwargs))


def fail(text: str) -> None:
    raise ValueError(text)


def note(value: Any) -> Any:
    return value


def describe_request(self: Any) -> dict[str, Any]:
    request = self.request
    return {
        "id": request.id,
        "custom": request.headers.get("custom") if request.headers else None,
        "priority": request.delivery_info.get("priority"),
        "routing_key": request.delivery_info.get("routing_key"),
        "eta": request.eta,
        "now": datetime.datetime.now(datetime.timezone.utc),
        "correlation_id": request.correlation_id,
    }


def retry_in_transaction(self: Any) -> int:
    with transaction.atomic():
        if self.request.retries < 2:
            raise self.retry(countdown=0.01, max_retries=5)
    return int(self.request.retries)


def replace_in_transaction(self: Any, a: int, b: int) -> Any:
    with transaction.atomic():
        return self.replace(self.app.tasks["tests.add"].s(a, b))


def call_another(self: Any, commit: bool) -> str:
    """Call `tests.add` in a transaction, and return the ID of the call."""
    with transaction.atomic():
        result = self.app.tasks["tests.add"].delay(1, 1)
        transaction.set_rollback(not commit)
    return str(result.id)
