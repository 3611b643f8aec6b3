"""Fixtures for tests of Django Tasks."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from django.test import override_settings

from tests.support.effects import HANDLERS, scratch_handlers
from tests.support.publishers import SCRIPTED

Configure = Callable[..., None]


@pytest.fixture
def configure() -> Iterator[Configure]:
    """What makes the outbox the default backend, given its OPTIONS, more of its entry, and RETRY of its publisher."""
    with ExitStack() as stack:
        stack.enter_context(scratch_handlers())

        def set_up(
            options: dict[str, Any],
            *,
            retry: dict[str, Any] | None = None,
            time_limit: float | None = None,
            transaction: bool = True,
            **entry: Any,
        ) -> None:
            handlers = {
                **HANDLERS,
                "RETRY": {**HANDLERS["RETRY"], **(retry or {})},
                "OPTIONS": {"time_limit": time_limit, "transaction": transaction},
            }
            publishers = {"default": SCRIPTED, "handlers": handlers, "mail": HANDLERS}
            backend = {"BACKEND": "django_outbox.contrib.django_tasks.OutboxBackend", "OPTIONS": options, **entry}
            other = {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}
            stack.enter_context(
                override_settings(OUTBOX={"PUBLISHERS": publishers}, TASKS={"default": backend, "other": other})
            )

        yield set_up


@pytest.fixture
def tasks(configure: Configure, using: str) -> Iterator[Any]:
    """The module of tasks, which go to the outbox of the test's database."""
    from tests.support import django_tasks  # noqa: PLC0415 - needs Django 6.0

    configure({"database": using})
    django_tasks.calls.clear()
    yield django_tasks
    django_tasks.calls.clear()
