"""Celery tasks through the outbox, compared with plain apply_async().

Callers make a tenth of the calls. They are one process.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from celery import Celery, Task
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from kombu import Queue

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.celery import OutboxTask
from django_outbox.relay import Relay
from tests.benchmarks.brokers.rabbitmq import QuorumQueues, RabbitMQ
from tests.benchmarks.measuring import BenchmarkError, Run
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report, compare
from tests.benchmarks.tables import empty, refresh
from tests.benchmarks.workspace import require_server

app: Celery
"""The app of the running benchmark, which the publisher finds here."""

PAYLOAD = {"id": 1240, "customer": "Ada", "lines": ["teapot", "cup"], "note": "x" * 100}
"""The argument of each task."""


def note(order: dict[str, object]) -> None:
    """The task; no worker runs it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(parser, messages=10_000, repeats=3)


def run(options: argparse.Namespace) -> Report:
    require_server()
    calls, messages = max(options.messages // 10, 1), options.messages
    cases: dict[str, tuple[int, Callable[[int], float]]] = {
        "apply_async(), confirmed": (calls, _apply_async),
        "outbox: delay() in its own transaction": (calls, _delay),
        "outbox: delay() in one transaction": (calls, partial(_delay, together=True)),
        "outbox: relay": (messages, _drain),
        "outbox: relay, 2 workers": (messages, partial(_drain, workers=2)),
    }

    def measure(case: str) -> Run:
        count, work = cases[case]
        queues.purge()
        run = Run(count, work(count))
        queues.expect(0 if "delay" in case else count)
        return Run(count, run.seconds, {"µs a task": 1e6 / run.rate})

    with QuorumQueues(1) as queues, _made_app(queues):
        return compare(
            f"Celery tasks from {connection.display_name} to RabbitMQ, publisher confirms on",
            list(cases) * options.repeats,
            measure,
            ratio="of apply_async()",
        )


@contextmanager
def _made_app(queues: RabbitMQ) -> Iterator[None]:
    global app  # noqa: PLW0603 - the publisher imports it by a path
    [name] = queues.queues
    app = Celery("benchmark", broker=queues.url, task_cls=OutboxTask, set_as_current=False)
    app.conf.update(
        task_queues=[Queue(name, routing_key=name, queue_arguments={"x-queue-type": queues.kind})],
        task_default_queue=name,
        broker_transport_options={"confirm_publish": True},
        task_ignore_result=True,
    )
    app.task(name="benchmark.note", shared=False)(note)
    celery = {
        "BACKEND": "django_outbox.brokers.celery.CeleryPublisher",
        "OPTIONS": {"app": "tests.benchmarks.celery:app"},
    }
    # The first call connects.
    Task.apply_async(app.tasks["benchmark.note"], (PAYLOAD,))
    with override_settings(OUTBOX={"PUBLISHERS": {**settings.OUTBOX["PUBLISHERS"], "celery": celery}}):
        yield
    app.close()


def _apply_async(count: int) -> float:
    task = app.tasks["benchmark.note"]
    began = time.perf_counter()
    for _ in range(count):
        Task.apply_async(task, (PAYLOAD,))
    return time.perf_counter() - began


def _delay(count: int, *, together: bool = False) -> float:
    """Call delay() in one transaction or in one for each call."""
    empty()
    refresh()
    delay = app.tasks["benchmark.note"].delay
    one, each = (transaction.atomic, nullcontext) if together else (nullcontext, transaction.atomic)
    began = time.perf_counter()
    with one():
        for _ in range(count):
            with each():
                delay(PAYLOAD)
    return time.perf_counter() - began


def _drain(count: int, workers: int = 1) -> float:
    with Relay(publishers=["celery"], workers=workers) as relay:
        relay.publishers[0].prepare()
        _delay(1)
        first = OutboxMessage.objects.get()
        # As delay() stores them, many at once.
        copied = {name: getattr(first, name) for name in ("type", "topic", "payload", "headers", "publisher")}
        empty()
        with transaction.atomic():
            enqueue_many(OutboxMessage(**copied) for _ in range(count))
        refresh()
        began = time.perf_counter()
        delivered = relay.drain().processed
        seconds = time.perf_counter() - began
    if delivered != count:
        raise BenchmarkError(f"The relay delivered {delivered:,} of {count:,} tasks.")
    return seconds
