"""The admin of results: lists and shows them, read-only."""

import uuid

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import BoundedPaginator, ReadOnly
from django_outbox.contrib.django_tasks.models import TaskRecord


@admin.register(TaskRecord)
class TaskRecordAdmin(ReadOnly, admin.ModelAdmin):  # type: ignore[type-arg]
    """Lists the newest results first. All its queries read the primary key, so it stays fast with millions of rows."""

    list_display = ("path", "status", "queue_name", "enqueued_at", "finished_at")
    ordering = ("-message_id",)
    sortable_by = ()
    search_fields = ("message_id",)
    search_help_text = _("Finds a result by its ID.")
    show_full_result_count = False
    paginator = BoundedPaginator

    def get_search_results(
        self, request: HttpRequest, queryset: "QuerySet[TaskRecord]", search_term: str
    ) -> "tuple[QuerySet[TaskRecord], bool]":
        """Return the result with this ID; Django would compare it as text, which reads the whole table."""
        if not search_term:
            return queryset, False
        try:
            return queryset.filter(message_id=uuid.UUID(search_term.strip())), False
        except ValueError:
            return queryset.none(), False
