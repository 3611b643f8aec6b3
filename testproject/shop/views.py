"""`POST /orders/` saves an order and enqueues a message about it, in one transaction."""

import json
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from django_outbox import InvalidMessage, OutboxMessage, enqueue
from shop.events import OrderPlaced
from shop.forms import OrderForm
from shop.models import Order

OUT_OF_STOCK = "out-of-stock"
"""An item that turns out to be missing after the order and its message were written."""


class OutOfStock(Exception):
    """The item is out of stock. The order and its message are rolled back."""


@csrf_exempt  # Called by programs. It reads no cookies, so there are none that another site could abuse.
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Save the order in the JSON body and enqueue `OrderPlaced`: both, or neither.

    The response is 201 with the id and number of the order, 400 with the errors of each field, or 409 if the item is
    out of stock.
    """
    try:
        form = OrderForm(_read_body(request.body))
    except ValueError as error:
        return JsonResponse({"errors": {"body": [str(error)]}}, status=400)
    if not form.is_valid():
        return JsonResponse({"errors": {name: list(errors) for name, errors in form.errors.items()}}, status=400)
    try:
        with transaction.atomic():
            order = form.save()
            enqueue(
                OrderPlaced(
                    id=order.pk,
                    number=order.number,
                    customer=order.customer,
                    item=order.item,
                    quantity=order.quantity,
                    total=order.total,
                    note=order.note,
                ),
                headers={"correlation_id": str(order.number)},
            )
            _take_from_stock(order)
    except InvalidMessage as error:
        return JsonResponse({"errors": {"body": [f"The order cannot be announced: {error}"]}}, status=400)
    except OutOfStock as error:
        return JsonResponse({"errors": {"item": [str(error)]}}, status=409)
    return JsonResponse({"id": order.pk, "number": order.number}, status=201)


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show the number of orders and messages, and how to place an order."""
    context = {
        "orders": Order.objects.count(),
        "pending": OutboxMessage.objects.pending().count(),
        "failed": OutboxMessage.objects.failed().count(),
    }
    return render(request, "shop/overview.html", context)


def _read_body(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
        # JSON can encode half of a surrogate pair, which no database can store.
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not JSON in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise ValueError('The body must be a JSON object, for example {"customer": "Ada", "item": "teapot", ...}.')
    for name, value in data.items():
        if isinstance(value, dict | list):
            raise ValueError(f"{name} must be a string or a number.")
    return data


def _take_from_stock(order: Order) -> None:
    if order.item == OUT_OF_STOCK:
        raise OutOfStock(f"{order.item} is not available in quantity {order.quantity}.")
