"""Functions that a relay of the shop calls with messages."""

from django_outbox.handlers import handler
from django_outbox.messages import Message
from shop.events import OrderPlaced
from shop.models import Receipt
from shop.tasks import send_confirmation


@handler(OrderPlaced, name="shop.write_receipt")
def write_receipt(event: OrderPlaced, message: Message) -> None:
    """Write the receipt of an order, and have its confirmation sent: both, or neither.

    The receipt is committed together with the state of the message, so there is exactly one, even if relays are killed.
    """
    Receipt.objects.create(order_id=event.id, total=event.total)
    send_confirmation.delay(event.id)
