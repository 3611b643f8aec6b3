"""Errors in the settings of Celery apps with tasks that use the outbox."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module

from celery import Celery, Task
from celery.app import app_or_default
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from django_outbox.brokers.celery import CeleryPublisher
from django_outbox.brokers.celery.options import EXAMPLE, find_app, late_modules
from django_outbox.brokers.registry import import_backend
from django_outbox.celery.app import OutboxCelery
from django_outbox.celery.task import OutboxTask
from django_outbox.conf import OutboxSettings, SettingsProblem
from django_outbox.utils.text import counted

ENTRY = f'{{"BACKEND": "django_outbox.brokers.celery.CeleryPublisher", "OPTIONS": {{"app": {EXAMPLE}}}}}'


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
    users: dict[str, str] = {}
    for app in apps:
        for name, alias in _find_aliases(app):
            users.setdefault(alias, name)
    for alias, name in users.items():
        if alias not in publishers:
            yield SettingsProblem(
                "E030",
                f"{name} uses the publisher {alias!r}, which is not a CeleryPublisher in OUTBOX['PUBLISHERS'].",
                f"Add one: {alias!r}: {ENTRY}. Or set outbox_publisher of the task or the app to one that exists.",
            )
    for path, app in by_path.items():
        module, _, name = path.replace(":", ".").rpartition(".")
        if issubclass(app.Task, OutboxTask) and module in late_modules:
            yield SettingsProblem(
                "W031",
                f"Nothing imports the Celery app {app.main!r} when Django starts, so in web processes its shared tasks "
                "belong to Celery's default app and bypass the outbox.",
                f"Write in the __init__.py of the project: from {module} import {name}",
            )
    for app in apps:
        yield from _find_bypassing_tasks(app)
    for app in apps if users else ():
        if str(app.conf.result_backend or "").startswith("rpc"):
            yield SettingsProblem(
                "W030",
                f"The Celery app {app.main!r} has the result backend rpc://, which loses results of tasks that are "
                "sent through the outbox.",
                "Use a result backend that stores results, such as Redis or a database: the queue of rpc:// does not "
                "exist until a result is asked for.",
            )


def _find_bypassing_tasks(app: Celery) -> Iterator[SettingsProblem]:
    """Report tasks that bypass the outbox, although the app is to use it for all tasks."""
    if not (isinstance(app, OutboxCelery) or issubclass(app.Task, OutboxTask)):
        return
    # Where workers find tasks. Celery's own search would run the checks again.
    with suppress(Exception):
        autodiscover_modules("tasks")
    for module in app.loader.default_modules:
        with suppress(Exception):
            import_module(module)
    names = [name for name, task in sorted(app.tasks.items()) if _bypasses(name, task)]
    if names:
        listed = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        yield SettingsProblem(
            "W032",
            f"{counted(len(names), 'task')} of the Celery app {app.main!r} ({listed}) with a base that is not an "
            "OutboxTask: calls bypass the outbox, and are sent before the commit and after a rollback.",
            "Derive the base from OutboxTask of django_outbox.celery. To send a task directly on purpose, give it "
            "base=celery.Task, or silence this check.",
        )


def _bypasses(name: str, task: object) -> bool:
    # `base=celery.Task` is how a task asks to be sent directly.
    is_direct = vars(type(task)).get("_decorated") and type(task).__bases__ == (Task,)
    return not (name.startswith("celery.") or isinstance(task, OutboxTask) or is_direct)


def _find_apps(paths: Sequence[str]) -> dict[str, Celery]:
    """Return the apps by their paths. E008 reports one that cannot be found."""
    found = {}
    for path in paths:
        with suppress(ImproperlyConfigured):
            found[path] = find_app(path)
    return found


def _find_aliases(app: Celery) -> Iterator[tuple[str, str]]:
    if isinstance(app, OutboxCelery):
        yield f"The Celery app {app.main!r}", app.outbox_publisher
    if issubclass(app.Task, OutboxTask):
        yield f"task_cls of the Celery app {app.main!r}", app.Task.outbox_publisher
    for name, task in sorted(app.tasks.items()):
        if isinstance(task, OutboxTask) and not name.startswith("celery."):
            yield f"The task {name!r}", task.outbox_publisher
