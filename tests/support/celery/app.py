"""Celery apps of the tests, in the test's process and in workers. Everything that they write has its own prefix."""

from typing import Any

from celery import Celery, chain, group
from django.conf import settings
from django.db import transaction

from django_outbox.celery import OutboxCelery, OutboxTask

app: Celery | None = None
"""The app of the running test; publishers find it by the path `tests.support.celery.app:app`."""


def make_app(broker: str, prefix: str, *, app_class: Any = Celery, **conf: Any) -> Celery:
    """Return an app with the tasks below.

    `prefix` is the name of its default queue, and the beginning of every key in Redis.
    """
    app_options: dict[str, Any] = {} if app_class is OutboxCelery else {"task_cls": OutboxTask}
    made: Celery[Any] = app_class(
        "outbox_tests", set_as_current=False, broker=broker, backend=settings.REDIS_URL, **app_options
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
    functions: list[Any] = [add, total, echo, fail, note, step]
    for function in functions:
        made.task(name=f"tests.{function.__name__}", shared=False)(function)
    for function in (retry_in_transaction, replace_in_transaction, call_another, describe_request, replace_by, poll):
        made.task(name=f"tests.{function.__name__}", shared=False, bind=True)(function)
    return made


def add(a: int, b: int) -> int:
    return a + b


def total(numbers: list[int]) -> int:
    return sum(numbers)


def echo(*args: Any, **kwargs: Any) -> Any:
    return [args, kwargs]


def fail(text: str) -> None:
    raise ValueError(text)


def note(value: Any) -> Any:
    return value


def describe_request(self: Any) -> dict[str, Any]:
    return {"id": self.request.id}


def retry_in_transaction(self: Any) -> int:
    with transaction.atomic():
        if self.request.retries < 2:
            raise self.retry(countdown=0.01, max_retries=5)
    return int(self.request.retries)


def replace_in_transaction(self: Any, a: int, b: int) -> Any:
    with transaction.atomic():
        return self.replace(self.app.tasks["tests.add"].s(a, b))


def step(trace: Any, name: str) -> list[str]:
    """Return the names of the steps so far, with this one. After a group, the steps of its tasks are joined."""
    if trace and isinstance(trace[0], list):
        trace = [*trace[0], *(each for branch in trace[1:] for each in branch if each not in trace[0])]
    return [*trace, name]


def replace_by(self: Any, trace: list[str], what: str) -> Any:
    """Replace the task by one that ends with the step `last`."""
    made = self.app.tasks["tests.step"]
    last = made.s("last")
    steps = {
        "a task": lambda trace: made.s(trace, "last"),
        "a chain": lambda trace: chain(made.s(trace, "1"), made.s("2"), last),
        "a chord": lambda trace: group(made.s(trace, "1"), made.s(trace, "2")) | last,
        "a chord whose body is a chain": lambda trace: (
            group(made.s(trace, "1"), made.s(trace, "2")) | chain(made.s("3"), made.s("4"), last)
        ),
        "a group": lambda trace: group(made.s(trace, "1"), made.s(trace, "2")),
    }
    return self.replace(steps[what]([*trace, "replaced"]))


def poll(self: Any, times: int) -> str:
    """Poll until it was called so many times, each time by a chain that ends with the same task."""
    if times == 0:
        return "done"
    return str(self.replace(chain(self.app.tasks["tests.step"].si([], "wait"), self.si(times - 1))))


def call_another(self: Any, commit: bool) -> str:
    """Call `tests.add` in a transaction, and return the ID of the call."""
    with transaction.atomic():
        result = self.app.tasks["tests.add"].delay(1, 1)
        transaction.set_rollback(not commit)
    return str(result.id)
