"""The events of the shop: what it announces to other services and to its own handlers."""

import uuid
from dataclasses import dataclass
from decimal import Decimal

from django_outbox.events import event


@event("order.placed", key="order-{id}")
@dataclass(frozen=True)
class OrderPlaced:
    """A customer has placed an order."""

    id: int
    number: uuid.UUID
    customer: str
    item: str
    quantity: int
    total: Decimal
    note: str
