"""Celery tasks through the outbox, compared with plain apply_async() and with django-celery-outbox."""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

from celery import Celery, Task
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from kombu import Queue

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.celery import OutboxTask
from django_outbox.relay import Relay
from tests.benchmarks.measuring import BenchmarkError, measure_all
from tests.benchmarks.options import add_numbers
from tests.benchmarks.report import Report
from tests.benchmarks.rival_process import Rival
from tests.benchmarks.tables import empty, refresh
from tests.benchmarks.workspace import require_broker, require_server

app: Celery
"""The app of the running benchmark, which the publisher finds here."""

PAYLOAD = {"id": 1240, "customer": "Ada", "lines": ["teapot", "cup"], "note": "x" * 100}
"""The argument of each task."""

CALLER = {
    "apply_async": "apply_async(), confirmed",
    "delay": "outbox: delay() in its own transaction",
    "delay_many": "outbox: delay() in one transaction",
    "rival": "django-celery-outbox: delay() in its own transaction",
}
"""What a caller waits for."""

RELAY = {
    "drain": "outbox: relay",
    "drain_2": "outbox: relay, 2 workers",
    "rival_drain": "django-celery-outbox: relay",
    "rival_drain_tuned": "django-celery-outbox: relay, batches of 1,000, 8 threads",
}
"""What a relay does."""


def note(order: dict[str, object]) -> None:
    """The task; no worker runs it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_numbers(
        parser,
        calls=(1000, "Calls of a case that measures callers."),
        messages=(10_000, "Messages that a relay delivers in a case; django-celery-outbox a fifth of them."),
        repeats=(3, "Rounds; the median of each case counts."),
    )
    parser.add_argument(
        "--rival",
        metavar="PYTHON",
        help="The interpreter of an environment in which django-celery-outbox is installed.",
    )


def run(options: argparse.Namespace) -> Report:
    url = require_broker()
    require_server()
    with ExitStack() as stack:
        made = stack.enter_context(_made_app(url))
        rival = stack.enter_context(Rival(options.rival, url, made.conf.task_default_queue)) if options.rival else None

        def measure(case: str) -> float:
            """Return the rate."""
            _purge(made)
            count: int = options.calls if case in CALLER else options.messages
            if case.startswith("rival_drain"):
                # Its rate does not depend on the number, and is lower.
                count = max(count // 5, 1)
            seconds = rival.measure(case, count) if rival and case.startswith("rival") else MEASURED[case](made, count)
            _expect(made, 0 if case in ("delay", "delay_many", "rival") else count)
            return count / seconds

        cases = [case for case in (*CALLER, *RELAY) if rival or not case.startswith("rival")]
        rates = {case: median(found) for case, found in measure_all(cases * options.repeats, measure).items()}
    return _report(options, rates)


def _report(options: argparse.Namespace, rates: dict[str, float]) -> Report:
    report = Report(
        title=f"Celery tasks from {connection.display_name} to RabbitMQ, publisher confirms on",
        columns=["what", "µs a task", "tasks/s", "of apply_async()"],
    )
    for case, rate in rates.items():
        ratio = rate / rates["apply_async"]
        report.rows.append([{**CALLER, **RELAY}[case], 1e6 / rate, rate, ratio])
        report.figures |= {f"{case}_rate": rate, f"{case}_ratio": ratio}
    if "rival_drain" in rates:
        for ours, theirs in (("delay", "rival"), ("drain", "rival_drain"), ("drain", "rival_drain_tuned")):
            report.figures[f"{ours}_to_{theirs}_ratio"] = rates[ours] / rates[theirs]
        report.notes.append(
            f"Compared with django-celery-outbox: caller {report.figures['delay_to_rival_ratio']:.1f} times its rate, "
            f"relay {report.figures['drain_to_rival_drain_ratio']:.1f} times, or "
            f"{report.figures['drain_to_rival_drain_tuned_ratio']:.1f} times when it is tuned."
        )
    report.notes.append(
        f"Callers: {options.calls:,} calls by one process; relays: {options.messages:,} messages. "
        f"Median of {options.repeats}."
    )
    return report


@contextmanager
def _made_app(url: str) -> Iterator[Celery]:
    """Make an app with its own quorum queue, which is deleted in the end."""
    global app  # noqa: PLW0603 - the publisher imports it by a path
    name = f"outbox-benchmark-{os.getpid()}-quorum-celery"
    app = Celery("benchmark", broker=url, task_cls=OutboxTask, set_as_current=False)
    app.conf.update(
        task_queues=[Queue(name, routing_key=name, queue_arguments={"x-queue-type": "quorum"})],
        task_default_queue=name,
        broker_transport_options={"confirm_publish": True},
        task_ignore_result=True,
    )
    app.task(name="benchmark.note", shared=False)(note)
    celery = {
        "BACKEND": "django_outbox.publishers.celery.CeleryPublisher",
        "OPTIONS": {"app": "tests.benchmarks.celery:app"},
    }
    outbox = {"PUBLISHERS": {**settings.OUTBOX["PUBLISHERS"], "celery": celery}}
    with override_settings(OUTBOX=outbox):
        try:
            yield app
        finally:
            with app.connection_for_write() as broker:
                app.amqp.queues[name](broker.default_channel).delete()
            app.close()


def _purge(made: Celery) -> None:
    with made.connection_for_write() as broker:
        queue = made.amqp.default_queue(broker.default_channel)
        queue.declare()
        queue.purge()


def _expect(made: Celery, count: int) -> None:
    """Raise a BenchmarkError unless the queue holds this many messages."""
    deadline = time.monotonic() + 30
    with made.connection_for_write() as broker:
        queue = made.amqp.default_queue(broker.default_channel)
        while (found := _count(queue)) != count:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"{count:,} tasks were sent, and the queue holds {found:,}.")
            time.sleep(0.05)


def _count(queue: Any) -> int:
    return int(queue.queue_declare(passive=True).message_count)


def _apply_async(made: Celery, count: int) -> float:
    task = made.tasks["benchmark.note"]
    Task.apply_async(task, (PAYLOAD,))
    _purge(made)
    began = time.perf_counter()
    for _ in range(count):
        Task.apply_async(task, (PAYLOAD,))
    return time.perf_counter() - began


def _delay(made: Celery, count: int) -> float:
    empty()
    refresh()
    note = made.tasks["benchmark.note"].delay
    began = time.perf_counter()
    for _ in range(count):
        with transaction.atomic():
            note(PAYLOAD)
    return time.perf_counter() - began


def _delay_many(made: Celery, count: int) -> float:
    empty()
    refresh()
    note = made.tasks["benchmark.note"].delay
    began = time.perf_counter()
    with transaction.atomic():
        for _ in range(count):
            note(PAYLOAD)
    return time.perf_counter() - began


def _drain(made: Celery, count: int, workers: int = 1) -> float:
    with Relay(publishers=["celery"], workers=workers) as relay:
        _delay_many(made, 1)
        warm = relay.deliver_once().processed
        _copy(made, count)
        _purge(made)
        refresh()
        began = time.perf_counter()
        delivered = relay.drain().processed - warm
        seconds = time.perf_counter() - began
    if delivered != count:
        raise BenchmarkError(f"The relay delivered {delivered:,} of {count:,} tasks.")
    assert not OutboxMessage.objects.pending().exists()
    return seconds


def _copy(made: Celery, count: int) -> None:
    """Store calls as delay() does, many at once."""
    _delay_many(made, 1)
    first = OutboxMessage.objects.get()
    copied = {name: getattr(first, name) for name in ("type", "topic", "payload", "headers", "publisher")}
    with transaction.atomic():
        enqueue_many(OutboxMessage(**copied) for _ in range(count - 1))


MEASURED: dict[str, Callable[[Celery, int], float]] = {
    "apply_async": _apply_async,
    "delay": _delay,
    "delay_many": _delay_many,
    "drain": _drain,
    "drain_2": lambda made, count: _drain(made, count, workers=2),
}
