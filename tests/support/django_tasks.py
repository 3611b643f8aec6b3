"""Tasks for the tests of Django Tasks. Importing it needs Django 6.0."""

import time
from typing import Any

from django.contrib.auth.models import Group
from django.tasks import TaskContext, task

from django_outbox.models import KeyLock
from tests.support.effects import leave

calls: list[Any] = []
"""What tasks noted in this process."""


@task
def note(*args: Any, **kwargs: Any) -> None:
    calls.append((args, kwargs))


@task
async def note_async(*args: Any, **kwargs: Any) -> None:
    calls.append((args, kwargs))


@task
def add(a: int, b: int) -> int:
    return a + b


@task
def echo(value: Any) -> Any:
    return value


@task
def leave_effect(using: str, name: str) -> str:
    leave(using, name)
    return name


@task
def leave_effect_and_fail(using: str, name: str) -> None:
    leave(using, name)
    raise ValueError(f"no {name}")


@task(takes_context=True)
def fail_twice(context: "TaskContext[Any, Any]", using: str, name: str) -> int:
    leave(using, name)
    if context.attempt < 3:
        raise LookupError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def own_id(context: "TaskContext[Any, Any]") -> str:
    calls.append(context.task_result)
    return context.task_result.id


@task
def return_a_set() -> set[int]:
    return {1}


@task
def wait_for_effect(using: str, name: str) -> int:
    """Wait until a group has this name; return the number of seconds."""
    began = time.monotonic()
    while not Group.objects.using(using).filter(name=name).exists():
        time.sleep(0.02)
    return int(time.monotonic() - began)


@task
def lose_lease(using: str) -> int:
    KeyLock.objects.using(using).filter(number__lt=0).delete()
    return 1
