"""`POST /orders/` places an order and tells the world about it, in one transaction."""

import json
from typing import Any

from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from django_outbox import InvalidMessage, OutboxMessage, enqueue
from shop.forms import OrderForm
from shop.models import Order

OUT_OF_STOCK = "out-of-stock"
"""An item that the shop turns out not to have, once the order is saved and its message written."""


class OutOfStock(Exception):
    """There is not enough of an item; the order is rolled back, and its message with it."""


@csrf_exempt  # Programs call it with JSON. No cookie is read, so there is none that a foreign page could abuse.
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    """Save the order in the JSON body and enqueue `order.placed`: both, or neither.

    Answers 201 with the id and number of the order, 400 with what is wrong in which field, or 409 when the item is out
    of stock.
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
                "order.placed",
                {
                    "id": order.pk,
                    "number": order.number,
                    "customer": order.customer,
                    "item": order.item,
                    "quantity": order.quantity,
                    "total": order.total,
                    "note": order.note,
                },
                key=f"order-{order.pk}",
                headers={"correlation_id": str(order.number)},
            )
            _take_from_stock(order)
    except InvalidMessage as error:
        return JsonResponse({"errors": {"body": [f"The order cannot be told of: {error}"]}}, status=400)
    except OutOfStock as error:
        return JsonResponse({"errors": {"item": [str(error)]}}, status=409)
    return JsonResponse({"id": order.pk, "number": order.number}, status=201)


@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    """Show how many orders there are and how to place one."""
    context = {
        "orders": Order.objects.count(),
        "pending": OutboxMessage.objects.pending().count(),
        "failed": OutboxMessage.objects.failed().count(),
    }
    return render(request, "shop/overview.html", context)


def _read_body(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body)
        # JSON can spell half of a surrogate pair, which is no text that a database could store.
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The body is not JSON in UTF-8: {error}") from None
    if not isinstance(data, dict):
        raise ValueError('The body must be a JSON object, as {"customer": "Ada", "item": "teapot", ...}.')
    for name, value in data.items():
        if isinstance(value, dict | list):
            raise ValueError(f"{name} must be a string or a number.")
    return data


def _take_from_stock(order: Order) -> None:
    if order.item == OUT_OF_STOCK:
        raise OutOfStock(f"There are no {order.quantity} of {order.item}.")
