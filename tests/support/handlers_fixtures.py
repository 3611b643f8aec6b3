"""Fixtures for tests of local handlers."""

from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_outbox.handlers.registry import HandlerRegistry
from tests.support.effects import HANDLERS, scratch_handlers


@pytest.fixture
def handlers(request: pytest.FixtureRequest) -> Iterator[HandlerRegistry]:
    """An empty registry, under the setting OUTBOX of the test's module; by default handlers are the only publisher.

    A module uses it for all its tests with `pytest.mark.usefixtures("handlers")`.
    """
    outbox = getattr(request.module, "OUTBOX", {"PUBLISHERS": {"default": HANDLERS}})
    with scratch_handlers() as empty, override_settings(OUTBOX=outbox):
        yield empty
