"""From the shop's view to another service: real processes on a real database and a quorum queue of RabbitMQ."""

import signal

import pytest

from tests.support.shop import PATIENCE, Process, Shop
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.shop_fixtures"]
pytestmark = pytest.mark.slow

BATCH_SIZE = 5
WORKERS = 2
"""Each has a batch of its own in flight."""


def test_sigterm_in_the_midst_of_work_ends_a_relay_well_and_loses_and_repeats_nothing(shop: Shop):
    relay = stop_relay_during_a_batch(shop)
    relay.send(signal.SIGTERM, signal.SIGCONT)
    assert relay.wait() == 0, relay.output
    assert shop.count_messages("available_at IS NOT NULL") > 0
    shop.manage("run_outbox", "--drain")
    shop.wait_for_arrivals(shop.count_messages(), shop.start_consumer())
    assert shop.assert_everything_arrived() == 0


def stop_relay_during_a_batch(shop: Shop) -> Process:
    """Return a relay that has been stopped before it settled what it published.

    There are more messages than its open batches have.
    """
    shop.manage("consume_orders", "--declare-only")
    saved = shop.place_orders(400)
    relay = shop.start("run_outbox", "--batch-size", str(BATCH_SIZE), "--workers", str(WORKERS))
    eventually(shop.depth, seconds=PATIENCE)
    while True:
        relay.send(signal.SIGSTOP)
        settled, sent = shop.count_messages("processed_at IS NOT NULL"), shop.depth()
        if settled < sent < saved - BATCH_SIZE * WORKERS:
            return relay
        relay.send(signal.SIGCONT)
        if sent >= saved - BATCH_SIZE * WORKERS:
            saved += shop.place_orders(400)
