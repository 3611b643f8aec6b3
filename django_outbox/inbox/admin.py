"""The admin of handled messages: a read-only list."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import BoundedPaginator, ReadOnly
from django_outbox.brokers.ids import id_of
from django_outbox.inbox.models import HandledMessage


@admin.register(HandledMessage)
class HandledMessageAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    """Lists handled messages, the newest first, and finds one by its ID."""

    list_display = ("message_id", "consumer", "handled_at")
    list_display_links = None
    ordering = ("-id",)
    sortable_by = ()
    search_fields = ("message_id",)
    search_help_text = _("Finds a message by its ID.")
    # No page may count a table that has millions of rows.
    show_full_result_count = False
    paginator = BoundedPaginator

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(message_id=str(id_of(term))), False
