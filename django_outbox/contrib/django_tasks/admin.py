"""The admin of results: lists and shows them, read-only."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import RecordAdmin
from django_outbox.contrib.django_tasks.models import TaskRecord


@admin.register(TaskRecord)
class TaskRecordAdmin(RecordAdmin):
    """Lists the newest results first. All its queries read the primary key, so it stays fast with millions of rows."""

    list_display = ("path", "status", "queue_name", "enqueued_at", "finished_at")
    ordering = ("-message_id",)
    search_help_text = _("Finds a result by its ID.")
