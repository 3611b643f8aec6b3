"""Celery tasks that leave effects: a chain in which a task replaces itself by a chain of its own."""

import os
import time
from typing import Any

from celery import chain
from django.db import DatabaseError, InterfaceError, transaction

from django_outbox.celery import OutboxCelery
from tests.faults.effects.models import Effect

STEPS = ["first", "replaced", "inner", "outer", "last"]
"""The names of the effects of a chain, in their order."""

app = OutboxCelery("effects", broker=os.environ["FAULTS_CELERY_BROKER"])
app.conf.update(
    task_default_queue=os.environ["FAULTS_CELERY_QUEUE"],
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_ignore_result=True,
    worker_prefetch_multiplier=2,
    worker_hijack_root_logger=False,
)

AGAIN: dict[str, Any] = {
    "autoretry_for": (DatabaseError, InterfaceError),
    "max_retries": None,
    "retry_kwargs": {"countdown": 0.1},
}
"""A task whose database session was ended is run again."""


@app.task(**AGAIN)  # type: ignore[untyped-decorator]
def step(number: int, name: str) -> None:
    """Leave an effect, after a while in which the worker may be killed."""
    time.sleep(0.03)
    Effect.objects.create(number=number, handler=name)


@app.task(bind=True, **AGAIN)
def replaced(self: Any, number: int) -> Any:
    """Leave an effect, and go on as a chain."""
    Effect.objects.create(number=number, handler="replaced")
    return self.replace(chain(step.si(number, "inner"), step.si(number, "outer")))


def call(number: int) -> None:
    """Call all steps in the current transaction."""
    with transaction.atomic():
        chain(step.si(number, "first"), replaced.si(number), step.si(number, "last")).delay()
