"""The Django app of the table of results."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoTasksConfig(AppConfig):
    """Registers the handler that runs tasks, and the purge of results. Starting the app queries no database."""

    name = "django_outbox.contrib.django_tasks"
    label = "outbox_tasks"
    verbose_name = _("Outbox tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_outbox.contrib.django_tasks.handler import is_configured, register  # noqa: PLC0415 - needs the models
        from django_outbox.contrib.django_tasks.retention import purge_results  # noqa: PLC0415 - needs the models
        from django_outbox.retention.purge import also_purge  # noqa: PLC0415 - needs the models

        if is_configured():
            register()
        also_purge(purge_results)
