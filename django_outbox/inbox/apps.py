"""The Django app of the inbox."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OutboxInboxConfig(AppConfig):
    """Registers the system checks of the consumers, and the purge. Starting the app queries no database."""

    name = "django_outbox.inbox"
    label = "outbox_inbox"
    verbose_name = _("Inbox")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_outbox.inbox import consumers  # noqa: F401, PLC0415 - the import registers the checks
        from django_outbox.inbox.deduplication import purge_records  # noqa: PLC0415 - needs the models
        from django_outbox.retention.purge import also_purge  # noqa: PLC0415 - needs the models

        also_purge(purge_records)
