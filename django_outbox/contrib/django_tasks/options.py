"""The `OPTIONS` of the backend, the publishers that they name, and errors in them.

It is imported wherever a task is defined, so it imports no models.
"""

import datetime
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.tasks.base import Task, TaskResult

from django_outbox.brokers.registry import import_backend
from django_outbox.conf import SettingsProblem, get_settings
from django_outbox.conf.readers import Mistakes, Reader, read_keys, time_to_keep

# At runtime, Django's classes take no type arguments.
AnyTask: TypeAlias = "Task[..., Any]"
AnyResult: TypeAlias = "TaskResult[..., Any]"

APP = "django_outbox.contrib.django_tasks"

DEFAULT_PUBLISHER = "handlers"

DEFAULT_RETENTION = datetime.timedelta(days=7)

ENTRY = '"handlers": {"BACKEND": "django_outbox.handlers.HandlersPublisher"}'


class BackendOptions(NamedTuple):
    """The alias of an `OutboxBackend` in `TASKS`, and its `OPTIONS`."""

    alias: str
    values: Mapping[str, Any]

    @property
    def result_retention(self) -> datetime.timedelta | None:
        age: datetime.timedelta | None = self.values.get("result_retention", DEFAULT_RETENTION)
        return age

    @property
    def publisher(self) -> str:
        return str(self.values.get("publisher", DEFAULT_PUBLISHER))


def _import_publisher(alias: str) -> type:
    """Return the class of a publisher; `object` if there is none, which the checks of OUTBOX report."""
    with suppress(ImproperlyConfigured, KeyError):
        return import_backend(get_settings().publishers[alias].backend)
    return object


def runs_in_handlers(alias: str) -> bool:
    """Return whether a publisher is a `HandlersPublisher`. The models must be loaded."""
    from django_outbox.handlers.publisher import HandlersPublisher  # noqa: PLC0415 - needs the models

    return issubclass(_import_publisher(alias), HandlersPublisher)


def find_problems(backend: BackendOptions) -> Iterator[SettingsProblem]:
    """Yield the errors in the configuration of a backend; no query is made."""
    where = f"TASKS[{backend.alias!r}]"
    if not apps.is_installed(APP):
        yield SettingsProblem(
            "E060",
            f"{where} uses OutboxBackend, but {APP!r} is not in INSTALLED_APPS.",
            f"Add {APP!r} to INSTALLED_APPS, next to 'django_outbox', and run manage.py migrate.",
        )
    yield from _find_wrong_options(f"{where}['OPTIONS']", backend.values)


def _find_wrong_options(where: str, options: Mapping[str, Any]) -> Iterator[SettingsProblem]:
    try:
        read_keys(options, _READERS, [])
    except Mistakes as error:
        for mistake in error.found:
            yield SettingsProblem("E061", f"{where}{mistake.message}", mistake.hint)
    yield from _check_publisher(f"{where}['publisher']", options.get("publisher", DEFAULT_PUBLISHER))


def _database(value: object) -> object:
    if value is not None and value not in django_settings.DATABASES:
        raise ValueError(f"a key of DATABASES ({', '.join(sorted(django_settings.DATABASES))})")
    return value


_READERS: dict[str, Reader] = {
    "database": _database,
    # `_check_publisher` checks it.
    "publisher": lambda value: value,
    "result_retention": time_to_keep,
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
    backend = _import_publisher(alias)
    if backend is not object and not runs_in_handlers(alias):
        yield SettingsProblem(
            "E063",
            f"{where} is {alias!r}, a {backend.__name__}, which does not run tasks.",
            f"Name a HandlersPublisher, for example {ENTRY}.",
        )
