"""Mistakes in the settings of Celery apps whose tasks use the outbox."""

from collections.abc import Iterator

from celery import Celery
from celery.app import app_or_default
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from django_outbox.celery.task import OutboxTask
from django_outbox.conf import OutboxSettings, PublisherConfig, SettingsProblem
from django_outbox.publishers.celery import CeleryPublisher
from django_outbox.publishers.celery.apps import find_app

EXAMPLE = '{"BACKEND": "django_outbox.publishers.celery.CeleryPublisher", "OPTIONS": {"app": "shop.celery:app"}}'


def find_problems(settings: OutboxSettings) -> Iterator[SettingsProblem]:
    """Yield the problems of the current Celery app and of the apps that publishers name.

    E030 and E031 are errors; W030 is a warning.

    Args:
        settings: the valid settings of the outbox.
    """
    apps = _find_apps(settings)
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
                f"Add it: {alias!r}: {EXAMPLE}. Or set outbox_publisher of the task to a publisher that exists.",
            )
        elif not _is_celery_publisher(settings.publishers[alias]):
            yield SettingsProblem(
                "E031",
                f"{text} is not a CeleryPublisher.",
                f"Set outbox_publisher of the task to the alias of one, or change the entry: {EXAMPLE}.",
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


def _find_apps(settings: OutboxSettings) -> list[Celery]:
    apps: list[Celery] = [app_or_default()]
    for config in settings.publishers.values():
        if _is_celery_publisher(config):
            try:
                app = find_app(config.options.get("app"))
            except ImproperlyConfigured:
                # E008 reports it.
                continue
            if app not in apps:
                apps.append(app)
    return apps


def _find_aliases(app: Celery) -> Iterator[tuple[str, str]]:
    """Yield what uses the outbox, and the alias of its publisher."""
    if issubclass(app.Task, OutboxTask):
        yield f"task_cls of the Celery app {app.main!r}", app.Task.outbox_publisher
    for name, task in sorted(app.tasks.items()):
        if isinstance(task, OutboxTask) and not name.startswith("celery."):
            yield f"The task {name!r}", task.outbox_publisher


def _is_celery_publisher(config: PublisherConfig) -> bool:
    try:
        backend = import_string(config.backend)
    except ImportError:
        # E006 reports it.
        return False
    return isinstance(backend, type) and issubclass(backend, CeleryPublisher)
