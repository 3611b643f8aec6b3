"""Helpers for the tests of projects that use the outbox.

    from django_outbox.testing import OutboxTestMixin

    class PlaceOrderTests(OutboxTestMixin, TestCase):
        def test_it_announces_the_order(self):
            place_order("A-1", 42)
            self.outbox.assert_enqueued("order.created", number="A-1")
            self.outbox.drain()

With pytest, the fixture `outbox` is the same object.
"""

from django_outbox.testing.draining import Drained, DrainFailure, memory_publishers
from django_outbox.testing.outbox import Outbox, OutboxTestMixin

__all__ = ["DrainFailure", "Drained", "Outbox", "OutboxTestMixin", "memory_publishers"]
