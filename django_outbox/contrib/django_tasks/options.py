"""The `OPTIONS` of the backend, the publishers that they name, and errors in them.

It is imported wherever a task is defined, so it imports no models.
"""

from collections.abc import Iterator, Mapping
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
    """The alias of an `OutboxBackend` in `TASKS`, and its `OPTIONS`."""

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
    where = f"{where}['OPTIONS']"
    try:
        read_keys(backend.values, _READERS, [])
    except Mistakes as error:
        for mistake in error.found:
            yield SettingsProblem("E061", f"{where}{mistake.message}", mistake.hint)
    yield from _check_publisher(f"{where}['publisher']", backend.values.get("publisher", DEFAULT_PUBLISHER))


def _database(value: object) -> object:
    if value is not None and value not in django_settings.DATABASES:
        raise ValueError(f"a key of DATABASES ({', '.join(sorted(django_settings.DATABASES))})")
    return value


_READERS: dict[str, Reader] = {
    "database": _database,
    # `_check_publisher` checks it.
    "publisher": lambda value: value,
}


def _check_publisher(where: str, alias: object) -> Iterator[SettingsProblem]:
    try:
        publishers = get_settings().publishers
    except ImproperlyConfigured:
        # Reported by the checks of OUTBOX.
        return
    if not isinstance(alias, str) or alias not in publishers:
        yield SettingsProblem(
            "E062",
            f"{where} is {alias!r}, which is not in OUTBOX['PUBLISHERS'].",
            f"Add {ENTRY} to OUTBOX['PUBLISHERS'], or name one of its publishers: {', '.join(sorted(publishers))}.",
        )
        return
    from django_outbox.handlers.publisher import HandlersPublisher  # noqa: PLC0415 - needs the models

    backend = import_backend(publishers[alias].backend)
    # The checks of OUTBOX report a class that cannot be imported.
    if backend is not object and not issubclass(backend, HandlersPublisher):
        yield SettingsProblem(
            "E063",
            f"{where} is {alias!r}, a {backend.__name__}, which does not run tasks.",
            f"Name a HandlersPublisher, for example {ENTRY}.",
        )
