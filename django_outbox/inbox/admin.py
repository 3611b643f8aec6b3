"""The admin of handled messages: a read-only list."""

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from django_outbox.admin.changelist import RecordAdmin
from django_outbox.inbox.models import HandledMessage


@admin.register(HandledMessage)
class HandledMessageAdmin(RecordAdmin):
    """Lists handled messages, the newest first, and finds one by its ID."""

    list_display = ("message_id", "consumer", "handled_at")
    list_display_links = None
    ordering = ("-id",)
    search_help_text = _("Finds a message by its ID.")
