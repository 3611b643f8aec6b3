"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoOutboxConfig(AppConfig):
    """Registers the system checks; it asks no database."""

    name = "django_outbox"
    verbose_name = _("Outbox")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_outbox import checks  # noqa: F401, PLC0415 - importing it registers the checks
