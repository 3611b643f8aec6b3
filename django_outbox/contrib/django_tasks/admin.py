"""The admin of results: lists and shows them, read-only."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import BoundedPaginator
from django_outbox.contrib.django_tasks.models import TaskRecord

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[TaskRecord]
else:
    ModelAdmin = admin.ModelAdmin


@admin.register(TaskRecord)
class TaskRecordAdmin(ModelAdmin):
    """Lists the newest results first. All its queries read the primary key, so it stays fast with millions of rows."""

    list_display = ("path", "status", "queue_name", "enqueued_at", "finished_at")
    ordering = ("-message_id",)
    sortable_by = ()
    search_fields = ("message_id__exact",)
    search_help_text = _("Finds a result by its ID.")
    show_full_result_count = False
    paginator = BoundedPaginator

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
