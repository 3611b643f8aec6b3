"""Buyers who place orders through the shop's view. Some of the orders are rolled back."""

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import django
from django.test import Client
from django.urls import reverse

from shop.views import OUT_OF_STOCK

CHUNK_SIZE = 50
"""Orders that a process places before it reports."""


@dataclass(frozen=True)
class Placed:
    """Number of orders that were saved and that were rolled back."""

    saved: int = 0
    rolled_back: int = 0

    def __add__(self, other: "Placed") -> "Placed":
        return Placed(self.saved + other.saved, self.rolled_back + other.rolled_back)

    @property
    def count(self) -> int:
        """Number of orders sent."""
        return self.saved + self.rolled_back


class UnexpectedResponse(Exception):
    """The status was neither 201, nor 409 for an item that is out of stock."""


def place_orders(count: int, *, rollback_every: int = 0, processes: int = 1) -> Iterator[Placed]:
    """Place orders, and yield the result of each chunk.

    Args:
        count: number of orders.
        rollback_every: every Nth order is out of stock, so the view rolls it back; 0 for none.
        processes: number of processes that place orders in parallel; 1 uses the current process.

    Raises:
        UnexpectedResponse: the view refused an order.
    """
    chunks = [range(start, min(start + CHUNK_SIZE, count + 1)) for start in range(1, count + 1, CHUNK_SIZE)]
    if processes == 1:
        for chunk in chunks:
            yield _place(chunk, rollback_every)
        return
    # A forked process would share the database connection with this one.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=django.setup) as pool:
        for future in as_completed([pool.submit(_place, chunk, rollback_every) for chunk in chunks]):
            yield future.result()


def _place(numbers: range, rollback_every: int) -> Placed:
    client = Client(SERVER_NAME="localhost")
    url = reverse("place_order")
    statuses = []
    for number in numbers:
        out_of_stock = rollback_every > 0 and number % rollback_every == 0
        order = {
            "customer": f"Customer {number}",
            "item": OUT_OF_STOCK if out_of_stock else "teapot",
            "quantity": number % 5 + 1,
            "total": f"{(number % 5 + 1) * 24.5:.2f}",
        }
        response = client.post(url, json.dumps(order), content_type="application/json")
        if response.status_code != (409 if out_of_stock else 201):
            raise UnexpectedResponse(f"POST {url} returned {response.status_code}: {response.text[:500]}")
        statuses.append(response.status_code)
    return Placed(saved=statuses.count(201), rolled_back=statuses.count(409))
