"""The Django app of the table of results."""

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    from django_outbox.contrib.django_tasks.backend import OutboxBackend


class DjangoTasksConfig(AppConfig):
    """Registers the handler of tasks, and the purge of results. Starting the app queries no database."""

    name = "django_outbox.contrib.django_tasks"
    label = "outbox_tasks"
    verbose_name = _("Outbox tasks")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_outbox.contrib.django_tasks.handler import register  # noqa: PLC0415 - needs the models
        from django_outbox.contrib.django_tasks.records import purge_results  # noqa: PLC0415 - needs the models
        from django_outbox.retention.purge import also_purge  # noqa: PLC0415 - needs the models

        if any(self.find_backends()):
            register()
        also_purge(purge_results)

    def find_backends(self) -> "Iterator[OutboxBackend]":
        """Yield the backends in `TASKS` that are an `OutboxBackend`; others are not created."""
        from django.tasks import task_backends  # noqa: PLC0415 - needs the settings

        from django_outbox.contrib.django_tasks.backend import OutboxBackend  # noqa: PLC0415 - needs the settings

        for alias, entry in task_backends.settings.items():
            # Django reports a path that cannot be imported.
            with suppress(ImportError, KeyError):
                found = import_string(entry["BACKEND"])
                if isinstance(found, type) and issubclass(found, OutboxBackend):
                    backend = task_backends[alias]
                    assert isinstance(backend, OutboxBackend)
                    yield backend
