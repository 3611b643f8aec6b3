"""A mixin for test cases, and blocks that undo the registrations of a test."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from django_outbox.events.registry import registry as events
from django_outbox.handlers.registry import registry as handlers
from django_outbox.testing.outbox import Outbox
from django_outbox.testing.publishers import memory_publishers

if TYPE_CHECKING:
    from unittest import TestCase as Base
else:
    Base = object


class OutboxTestMixin(Base):
    """Gives each test of a Django `TestCase` the attribute `outbox`, and publishers in memory.

    Handlers and events that a test defines are forgotten at its end. Name the mixin before the test case:
    `class OrderTests(OutboxTestMixin, TestCase)`. A `setUp` of the test case calls `super().setUp()` first.
    """

    outbox: Outbox

    def setUp(self) -> None:
        stack = ExitStack()
        self.addCleanup(stack.close)
        for each in (memory_publishers(), isolated_handlers(), isolated_events()):
            stack.enter_context(each)
        self.outbox = Outbox()
        super().setUp()


@contextmanager
def isolated_handlers() -> Iterator[None]:
    """Forget the handlers that the block registers, at its end. The handlers of the project stay."""
    with handlers.isolated():
        yield


@contextmanager
def isolated_events() -> Iterator[None]:
    """Forget the events that the block registers, at its end. The events of the project stay."""
    with events.isolated():
        yield
