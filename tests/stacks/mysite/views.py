"""The views of a small project: each saves an order and its message."""

import os

from asgiref.sync import sync_to_async
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from django_outbox import enqueue

from .models import Order


def place_order(request: HttpRequest, number: str) -> HttpResponse:
    with transaction.atomic():
        Order.objects.create(number=number)
        enqueue("order.created", {"number": number}, key=number)
        if "fail" in request.GET:
            raise RuntimeError(f"order {number} failed")
    return JsonResponse({"number": number, "process": os.getpid()})


async def place_order_async(request: HttpRequest, number: str) -> HttpResponse:
    return await sync_to_async(place_order)(request, number)
