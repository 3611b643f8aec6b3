"""Orders, receipts and received messages in the admin, read-only."""

from django.contrib import admin
from django.http import HttpRequest

from shop.models import Order, Receipt, ReceivedMessage


class ReadOnlyAdmin:
    """Nothing can be added, changed or deleted."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        return False


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Orders, newest first."""

    list_display = ("id", "customer", "item", "quantity", "total", "created")
    ordering = ("-id",)
    show_full_result_count = False


@admin.register(Receipt)
class ReceiptAdmin(ReadOnlyAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Receipts, newest first."""

    list_display = ("id", "order_id", "total", "written", "confirmed")
    ordering = ("-id",)
    show_full_result_count = False


@admin.register(ReceivedMessage)
class ReceivedMessageAdmin(ReadOnlyAdmin, admin.ModelAdmin):  # type: ignore[type-arg]
    """Received messages, newest first."""

    list_display = ("message_id", "type", "key", "received_at", "deliveries")
    ordering = ("-id",)
    show_full_result_count = False
