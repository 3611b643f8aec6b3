"""A buyer: a process that places orders through the shop's view, and goes on where a killed one has stopped.

Its journal has a line for each order, `<customer> <status>`: 201 for one that was committed, 409 for one that was
rolled back. The customer identifies the order. The outcome of a commit is never unknown: after an error, and after a
kill, the process looks whether the order is there before it places it again.
"""

import json
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 180.0
"""Seconds for which an order is repeated, before the writer gives up."""

ROLLED_BACK = 1 / 11
"""Share of the orders that are rolled back: a tenth as many as those that are committed."""


@dataclass(frozen=True)
class Options:
    """The options of a writer.

    Args:
        number: which writer this is, from 0.
        seed: the seed of all writers.
        orders: the number of orders to commit.
        journal: path of its journal.
        limit: path of a file with the number of orders that each writer may have committed by now.
    """

    number: int
    seed: int
    orders: int
    journal: str
    limit: str


def main(options: Options) -> None:
    """Place orders until all are committed."""
    import django  # noqa: PLC0415

    django.setup()
    journal = Path(options.journal)
    statuses = [line.split()[1] for line in journal.read_text().splitlines()]
    committed, done = statuses.count("201"), len(statuses)
    doubtful = True
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with journal.open("ab", buffering=0) as lines:
        while committed < options.orders:
            while committed >= int(Path(options.limit).read_text()):
                time.sleep(0.02)
            customer = f"customer-{options.number}-{done}"
            rolled_back = random.Random(f"{options.seed}/{customer}").random() < ROLLED_BACK
            status = place(customer, rolled_back=rolled_back, doubtful=doubtful)
            lines.write(f"{customer} {status}\n".encode())
            committed += status == 201
            done += 1
            doubtful = False


def place(customer: str, *, rolled_back: bool, doubtful: bool) -> int:
    """Place an order, and return the status of the response.

    Args:
        customer: identifies the order.
        rolled_back: whether it is one that the view rolls back.
        doubtful: whether the order may have been committed already.
    """
    from django.db import DatabaseError, InterfaceError, connection  # noqa: PLC0415
    from django.test import Client  # noqa: PLC0415
    from shop.models import Order  # noqa: PLC0415
    from shop.views import OUT_OF_STOCK  # noqa: PLC0415

    order = {
        "customer": customer,
        "item": OUT_OF_STOCK if rolled_back else "teapot",
        "quantity": 2,
        "total": "49.00",
    }
    expected = 409 if rolled_back else 201
    began = time.monotonic()
    while True:
        try:
            if doubtful and Order.objects.filter(customer=customer).exists():
                return 201
            response = Client(SERVER_NAME="localhost").post("/orders/", json.dumps(order), "application/json")
        except (DatabaseError, InterfaceError):
            connection.close()
            if time.monotonic() > began + PATIENCE:
                raise
            doubtful = True
            time.sleep(0.1)
            continue
        if response.status_code != expected:
            raise AssertionError(f"the view responded with {response.status_code}: {response.text[:500]}")
        return expected


if __name__ == "__main__":
    main(Options(**json.loads(sys.argv[1])))
