"""Invoices in the admin."""

from django.contrib import admin

from billing.models import Invoice


@admin.register(Invoice)
class InvoiceAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Invoices, newest first."""

    list_display = ("id", "order_number", "customer", "total", "written")
    ordering = ("-id",)
    show_full_result_count = False
