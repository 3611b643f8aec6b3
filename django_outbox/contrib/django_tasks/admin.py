"""The admin of results: lists and shows them, read-only."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import BoundedPaginator, ReadOnly
from django_outbox.brokers.consumer import id_of
from django_outbox.contrib.django_tasks.models import TaskRecord


@admin.register(TaskRecord)
class TaskRecordAdmin(ReadOnly):
    """Lists the newest results first. All its queries read the primary key, so it stays fast with millions of rows."""

    list_display = ("path", "status", "queue_name", "enqueued_at", "finished_at")
    ordering = ("-message_id",)
    sortable_by = ()
    search_fields = ("message_id",)
    search_help_text = _("Finds a result by its ID.")
    show_full_result_count = False
    paginator = BoundedPaginator

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Return the result with this ID; Django would look for parts of IDs, which reads the whole table."""
        term = search_term.strip()
        return queryset.filter(message_id=str(id_of(term))) if term else queryset, False
