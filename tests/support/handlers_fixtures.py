"""Fixtures for tests of local handlers."""

from collections.abc import Iterator
from unittest import mock

import pytest
from django.test import override_settings

from django_outbox.events.registry import EventRegistry
from django_outbox.events.registry import registry as events
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


@pytest.fixture
def no_events() -> Iterator[None]:
    """Without the events of other tests, which would be routed to handlers."""
    with mock.patch.dict(vars(events), vars(EventRegistry())):
        yield
