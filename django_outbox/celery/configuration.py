"""Mistakes in the settings of Celery apps with tasks that use the outbox."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from celery import Celery
from celery.app import app_or_default
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.celery import CeleryPublisher
from django_outbox.brokers.celery.options import find_app, late_modules
from django_outbox.brokers.registry import import_backend
from django_outbox.celery.app import OutboxCelery
from django_outbox.celery.task import OutboxTask
from django_outbox.conf import OutboxSettings, SettingsProblem

EXAMPLE = '{"BACKEND": "django_outbox.brokers.celery.CeleryPublisher", "OPTIONS": {"app": "shop.celery:app"}}'


def find_problems(settings: OutboxSettings) -> Iterator[SettingsProblem]:
    """Yield the problems of the current Celery app and of the apps that publishers name."""
    publishers = {
        alias: each
        for alias, each in settings.publishers.items()
        if issubclass(import_backend(each.backend), CeleryPublisher)
    }
    paths = [path for each in publishers.values() if isinstance(path := each.options.get("app"), str)]
    # Before others are imported, one of which may make itself the current app.
    current = app_or_default()
    by_path = _find_apps(paths)
    apps = [*dict.fromkeys([current, *by_path.values()])]
    users: dict[str, list[str]] = {}
    for app in apps:
        for name, alias in _find_aliases(app):
            users.setdefault(alias, []).append(name)
    for alias, names in users.items():
        text = f"{names[0]} uses the publisher {alias!r}, which"
        if alias not in settings.publishers:
            yield SettingsProblem(
                "E030",
                f"{text} is not in OUTBOX['PUBLISHERS'].",
                f"Add it: {alias!r}: {EXAMPLE}. Or set outbox_publisher of the task or the app to one that exists.",
            )
        elif alias not in publishers:
            yield SettingsProblem(
                "E031",
                f"{text} is not a CeleryPublisher.",
                f"Set outbox_publisher of the task or the app to the alias of one, or change the entry: {EXAMPLE}.",
            )
    for app in apps:
        module, name = _find_late_import(app, by_path)
        if module:
            yield SettingsProblem(
                "W031",
                f"Nothing imports the Celery app {app.main!r} when Django starts, so in web processes its shared tasks "
                "belong to Celery's default app and bypass the outbox.",
                f"Write in the __init__.py of the project: from {module} import {name}",
            )
    for app in apps if users else ():
        if str(app.conf.result_backend or "").startswith("rpc"):
            yield SettingsProblem(
                "W030",
                f"The Celery app {app.main!r} has the result backend rpc://, which loses results of tasks that are "
                "sent through the outbox.",
                "Use a result backend that stores results, such as Redis or a database: the queue of rpc:// does not "
                "exist until a result is asked for.",
            )


def _find_apps(paths: Sequence[str]) -> dict[str, Celery]:
    """Return the apps by their paths. E008 reports one that cannot be found."""
    found = {}
    for path in paths:
        with suppress(ImproperlyConfigured):
            found[path] = find_app(path)
    return found


def _find_late_import(app: Celery, by_path: Mapping[str, Celery]) -> tuple[str, str]:
    """Return the module and the variable of an app that only a publisher has imported; blank if there is none."""
    if issubclass(app.Task, OutboxTask):
        for path, found in by_path.items():
            module, _, name = path.replace(":", ".").rpartition(".")
            if module in late_modules and found is app:
                return module, name
    return "", ""


def _find_aliases(app: Celery) -> Iterator[tuple[str, str]]:
    if isinstance(app, OutboxCelery):
        yield f"The Celery app {app.main!r}", app.outbox_publisher
    if issubclass(app.Task, OutboxTask):
        yield f"task_cls of the Celery app {app.main!r}", app.Task.outbox_publisher
    for name, task in sorted(app.tasks.items()):
        if isinstance(task, OutboxTask) and not name.startswith("celery."):
            yield f"The task {name!r}", task.outbox_publisher
