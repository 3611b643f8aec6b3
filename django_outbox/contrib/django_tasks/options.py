"""The `OPTIONS` of the backend, the publishers that they name, and errors in them.

It is imported wherever a task is defined, so it imports no models.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.tasks.base import Task, TaskResult

from django_outbox.brokers.registry import import_backend
from django_outbox.conf import SettingsProblem, get_settings
from django_outbox.conf.readers import Mistakes, Reader, read_keys

# At runtime, Django's classes take no type arguments.
AnyTask: TypeAlias = "Task[..., Any]"
AnyResult: TypeAlias = "TaskResult[..., Any]"

APP = "django_outbox.contrib.django_tasks"

DEFAULT_PUBLISHER = "handlers"
ENTRY = '"handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}'


class BackendOptions(NamedTuple):
    alias: str
    values: Mapping[str, Any]

    @property
    def publisher(self) -> str:
        return str(self.values.get("publisher", DEFAULT_PUBLISHER))


def find_problems(backend: BackendOptions) -> Iterator[SettingsProblem]:
    """Yield the errors in the configuration of a backend; no query is made."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed(APP):
        yield SettingsProblem(
            "E060",
            f"{where} uses OutboxBackend, but {APP!r} is not in INSTALLED_APPS.",
            f"Add {APP!r} to INSTALLED_APPS, next to 'django_outbox', and run manage.py migrate.",
        )
    try:
        read_keys({"publisher": DEFAULT_PUBLISHER, **backend.values}, _READERS, [])
    except Mistakes as error:
        for mistake in error.found:
            yield SettingsProblem("E061", f"{where}['OPTIONS']{mistake.message}", mistake.hint)


def _database(value: object) -> object:
    if value is not None and value not in django_settings.DATABASES:
        raise ValueError(f"a key of DATABASES ({', '.join(sorted(django_settings.DATABASES))})")
    return value


def _publisher(value: object) -> object:
    from django_outbox.handlers.publisher import HandlersPublisher  # noqa: PLC0415 - needs the models

    # The checks of OUTBOX report other mistakes in it.
    with suppress(ImproperlyConfigured):
        config = get_settings().publishers.get(str(value))
        if config is None or not issubclass(import_backend(config.backend), HandlersPublisher):
            raise ValueError(f"the alias of a HandlersPublisher in OUTBOX['PUBLISHERS'], for example {ENTRY}")
    return value


_READERS: dict[str, Reader] = {"database": _database, "publisher": _publisher}
