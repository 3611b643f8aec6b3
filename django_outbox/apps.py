"""The Django app."""

import sys
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.apps import apps as all_apps
from django.conf import settings
from django.db import connections, router
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

from django_outbox.tracing import Tracer, add_tracer_when_imported


class DjangoOutboxConfig(AppConfig):
    """Registers the system checks, a `post_migrate` handler, and each app's events and handlers.

    Starting the app queries no database.

    Attributes:
        modules: the names of the modules that are imported from each installed app. If other apps use these names for
            something else, name others in a subclass, and list the subclass in `INSTALLED_APPS`.
    """

    name = "django_outbox"
    verbose_name = _("Outbox")
    default_auto_field = "django.db.models.BigAutoField"
    modules: Sequence[str] = ("events", "handlers")

    def ready(self) -> None:
        from django_outbox import checks  # noqa: F401, PLC0415 - the import registers the checks

        autodiscover_modules(*self.modules)
        post_migrate.connect(add_key_locks, sender=self, dispatch_uid="django_outbox.key_locks")
        add_tracer_when_imported("opentelemetry.trace", make_opentelemetry_tracer)
        if settings.DEBUG and sys.argv[1:2] == ["runserver"]:
            from django.utils.autoreload import autoreload_started  # noqa: PLC0415 - only development needs it

            from django_outbox.management.runserver import start_relay  # noqa: PLC0415 - needs the models

            # Sent in the process that serves requests, not in its parent.
            autoreload_started.connect(start_relay, dispatch_uid="django_outbox.runserver")


def make_opentelemetry_tracer() -> Tracer:
    from django_outbox.monitoring.tracing import OpenTelemetryTracer  # noqa: PLC0415 - needs OpenTelemetry

    return OpenTelemetryTracer()


def add_key_locks(*, using: str, apps: Any = all_apps, **_: object) -> None:
    """Create the rows of `KeyLock` after `migrate`, and after a test's `flush`."""
    from django_outbox.stores import find_store  # noqa: PLC0415 - needs the models

    try:
        model = apps.get_model("django_outbox", "KeyLock")
    except LookupError:
        return
    store = find_store(connections[using])
    if store and router.allow_migrate_model(using, model):
        store.add_key_locks()
