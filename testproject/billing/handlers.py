"""Functions that a relay of billing calls with the messages that the inbox has stored."""

from typing import Any

from billing.models import Invoice
from django_outbox.handlers import handler
from django_outbox.messages import Message


@handler("order.placed", name="billing.write_invoice")
def write_invoice(order: dict[str, Any], message: Message) -> None:
    """Write the invoice of an order of the shop."""
    Invoice.objects.create(order_number=order["number"], customer=order["customer"], total=order["total"])
