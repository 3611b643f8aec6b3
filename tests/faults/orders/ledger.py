"""The count at the end: orders, invoices and messages of both databases, compared with the writers' journals."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.orders.plan import BILLING
from tests.faults.servers import DATABASE, TABLE, DatabaseServer

UNFINISHED = f"SELECT count(*) FROM {TABLE} WHERE processed_at IS NULL"


@dataclass(frozen=True)
class Ledger:
    """What became of the orders.

    Args:
        orders: orders that were committed.
        rolled_back: orders that were rolled back.
        received: messages that the inboxes received, repeated ones included.
        promises: the number of times that each promise was broken.
    """

    orders: int
    rolled_back: int
    received: int
    promises: dict[str, int]

    @property
    def again(self) -> int:
        """Messages that came again, because a process was killed before it recorded or acknowledged them."""
        return max(0, self.received - self.orders)


def check(database: DatabaseServer, journals: Sequence[Path], received: Path) -> Ledger:
    """Compare the journals with the tables."""
    lines = [line.split() for journal in journals for line in journal.read_text().splitlines()]
    placed = Counter(customer for customer, status in lines if status == "201")
    orders = database.rows("SELECT number, customer FROM shop_order")
    numbers = {number for number, _ in orders}
    customers = Counter(customer for _, customer in orders)
    invoices = Counter(number for (number,) in database.rows("SELECT order_number FROM billing_invoice", (), BILLING))
    receipts = database.rows("SELECT count(*) FROM shop_receipt")[0][0]
    return Ledger(
        orders=len(orders),
        rolled_back=len(lines) - placed.total(),
        received=sum(int(line) for line in received.read_text().splitlines()),
        promises={
            "orders without an invoice": len(numbers - invoices.keys()),
            "orders with two or more invoices": sum(count > 1 for count in invoices.values()),
            "invoices of orders that were rolled back": len(invoices.keys() - numbers),
            "orders lost or doubled by the shop": (placed - customers).total() + (customers - placed).total(),
            "orders without a receipt": len(orders) - receipts,
            "messages of the shop not delivered": database.rows(UNFINISHED, (), DATABASE)[0][0],
            "messages of billing not handled": database.rows(UNFINISHED, (), BILLING)[0][0],
        },
    )
