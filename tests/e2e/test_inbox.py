"""Shop, RabbitMQ, billing: each order has one invoice, although relays, inbox and connections are killed."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import LOCKING
from tests.support.databases import Database
from tests.support.rabbitmq_tools import TcpProxy, broker_url
from tests.support.shop import PATIENCE, Shop
from tests.support.waiting import eventually

pytest_plugins = ["tests.support.rabbitmq_fixtures"]
pytestmark = pytest.mark.slow

IN_BILLING = ("--settings", "billing.settings")
COMMANDS = {
    "shop": ["run_outbox", "--batch-size", "10"],
    "inbox": ["run_inbox", *IN_BILLING],
    "billing": ["run_outbox", "--publisher", "handlers", *IN_BILLING],
}
FAULTS = [*COMMANDS, "connections"] * 2
ORDERS = 100
"""Orders that are placed around each fault. One in ten is rolled back."""


class Services(NamedTuple):
    """The shop, and the database of billing."""

    shop: Shop
    billing: Database

    def count_invoices(self) -> int:
        return self.billing.count("1 = 1", "billing_invoice")

    def has_more_invoices_than(self, count: int) -> bool:
        return self.count_invoices() > count

    def finish(self) -> None:
        """Let each part do what is left."""
        for command in COMMANDS.values():
            self.shop.manage(*command, "--drain")


@pytest.fixture(params=LOCKING)
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    with (
        Database(request.param) as database,
        Database(request.param) as billing,
        Shop(database, tmp_path, billing_database_url=billing.url) as shop,
    ):
        shop.manage("migrate", "--verbosity=0")
        shop.manage("migrate", "--verbosity=0", *IN_BILLING)
        shop.manage("consume_orders", "--queue", shop.billing_queue, "--declare-only")
        yield Services(shop, billing)


def test_each_order_has_one_invoice_and_one_receipt_whatever_is_killed(services: Services, proxy: TcpProxy):
    shop, billing = services
    shop.environment["AMQP_URL"] = broker_url(port=proxy.port)
    running = {part: shop.start(*command) for part, command in COMMANDS.items()}
    for fault in random.Random(7).sample(FAULTS, len(FAULTS)):
        before = services.count_invoices()
        buyers = shop.start("place_orders", "--count", str(ORDERS))
        eventually(partial(services.has_more_invoices_than, before), "an invoice is written", seconds=PATIENCE)
        if fault == "connections":
            proxy.end_connections()
        else:
            running[fault].kill()
            running[fault] = shop.start(*COMMANDS[fault])
        assert buyers.wait() == 0, buyers.output
    saved = len(FAULTS) * ORDERS * 9 // 10
    eventually(partial(services.has_more_invoices_than, saved - 1), "each order has an invoice", seconds=PATIENCE)
    for process in running.values():
        process.stop()
    # Messages that were delivered again must not make a second invoice.
    services.finish()
    orders = sorted(shop.database.rows("SELECT number FROM shop_order"))
    assert len(orders) == saved
    assert sorted(billing.rows("SELECT order_number FROM billing_invoice")) == orders
    assert shop.database.rows("SELECT order_id FROM shop_receipt ORDER BY order_id") == shop.database.rows(
        "SELECT id FROM shop_order ORDER BY id"
    )
    assert shop.unprocessed() == billing.count("processed_at IS NULL") == 0
