"""Helpers for the tests of projects that use the outbox.

    from django_outbox.testing import OutboxTestMixin

    class PlaceOrderTests(OutboxTestMixin, TestCase):
        def test_it_announces_the_order(self):
            place_order("A-1", 42)
            self.outbox.assert_enqueued("order.created", number="A-1")
            self.outbox.drain()

With pytest, the fixture `outbox` is the same object.
"""

from collections.abc import Mapping
from typing import Any

from django_outbox.models import OutboxMessage
from django_outbox.testing.draining import Drained, DrainFailure, memory_publishers
from django_outbox.testing.outbox import Outbox, OutboxTestMixin

__all__ = [
    "DrainFailure",
    "Drained",
    "Outbox",
    "OutboxTestMixin",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "memory_publishers",
]


def assert_enqueued(
    type_or_event: str | type, /, *, where: Mapping[str, Any] | None = None, **fields: Any
) -> OutboxMessage:
    """Assert that the table has such a message, and return the first one; see `Outbox.assert_enqueued`."""
    return Outbox(after=0).assert_enqueued(type_or_event, where=where, **fields)


def assert_not_enqueued(type_or_event: str | type, /, *, where: Mapping[str, Any] | None = None, **fields: Any) -> None:
    """Assert that the table has no such message; see `Outbox.assert_not_enqueued`."""
    Outbox(after=0).assert_not_enqueued(type_or_event, where=where, **fields)


def drain(
    *,
    using: str | None = None,
    raise_failures: bool = True,
    max_seconds: float = 30.0,
    delayed: bool = False,
) -> Drained:
    """Deliver the messages that are due, with publishers in memory and the project's handlers; see `Outbox.drain`."""
    with memory_publishers():
        return Outbox(using, after=0).drain(raise_failures=raise_failures, max_seconds=max_seconds, delayed=delayed)
