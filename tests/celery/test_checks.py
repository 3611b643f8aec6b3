"""The system checks of tasks that use the outbox."""

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from django.core.checks import CheckMessage, run_checks
from django.test import override_settings

from django_outbox.celery import OutboxCelery
from django_outbox.checks import TAG
from tests.support.celery import app as celery_app
from tests.support.celery.tools import PUBLISHERS

DEFAULT = {"default": PUBLISHERS["default"]}


@pytest.fixture(autouse=True)
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """The current app; all its tasks use the outbox."""
    made = celery_app.make_app("memory://", "outbox-test")
    monkeypatch.setattr(celery_app, "app", made)
    monkeypatch.setattr("django_outbox.celery.configuration.app_or_default", lambda: made)
    yield made
    made.close()


def found(publishers: dict[str, Any]) -> list[CheckMessage]:
    with override_settings(OUTBOX={"PUBLISHERS": publishers}):
        # A test of Django's tasks may have registered a handler in this process.
        return [problem for problem in run_checks(tags=[TAG], databases=[]) if problem.id != "django_outbox.W025"]


def test_tasks_with_their_publisher_give_no_message():
    assert found(PUBLISHERS) == []


def test_e030_there_is_no_publisher():
    (problem,) = found(DEFAULT)
    assert problem.id == "django_outbox.E030"
    assert "task_cls of the Celery app 'outbox_tests' uses the publisher 'celery'" in problem.msg
    assert "django_outbox.brokers.celery.CeleryPublisher" in str(problem.hint)


def test_e030_a_task_or_the_app_names_a_publisher_that_is_missing(app: Celery, monkeypatch: pytest.MonkeyPatch):
    task: Any = app.tasks["tests.add"]
    task.outbox_publisher = "emails"
    (problem,) = found(PUBLISHERS)
    assert problem.msg.startswith("The task 'tests.add' uses the publisher 'emails'")
    task.outbox_publisher = "celery"
    made = OutboxCelery("shop", set_as_current=False)
    made.outbox_publisher = "default"
    monkeypatch.setattr("django_outbox.celery.configuration.app_or_default", lambda: made)
    (problem,) = found(PUBLISHERS)
    assert problem.msg.startswith("The Celery app 'shop' uses the publisher 'default'")


@pytest.mark.parametrize("path", ["nowhere:app", "..shop:app"])
def test_e008_the_app_cannot_be_imported(path: str):
    entry: Any = {**PUBLISHERS["celery"], "OPTIONS": {"app": path}}
    assert [problem.id for problem in found({**DEFAULT, "celery": entry})] == ["django_outbox.E008"]


def test_w030_the_result_backend_keeps_no_results(app: Celery):
    app.conf.update(result_backend="rpc://")
    (problem,) = found(PUBLISHERS)
    assert (problem.id, problem.level) == ("django_outbox.W030", 30)
    assert problem.hint


@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize("app_class", ["Celery", "OutboxCelery"])
def test_w031_nothing_imports_the_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_imported: bool, app_class: str
):
    name = f"late_shop_{app_class}_{is_imported}".lower()
    options = "task_cls=OutboxTask, " if app_class == "Celery" else ""
    (tmp_path / f"{name}.py").write_text(
        "from celery import Celery\n"
        "from django_outbox.celery import OutboxCelery, OutboxTask\n"
        f'app = {app_class}("late_shop", {options}broker="memory://", set_as_current=False)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    if is_imported:
        import_module(name)
    problems = found({**PUBLISHERS, "late": {**PUBLISHERS["celery"], "OPTIONS": {"app": f"{name}:app"}}})
    assert [problem.id for problem in problems] == ([] if is_imported else ["django_outbox.W031"])
    assert all(f"from {name} import app" in str(problem.hint) for problem in problems)


def test_w031_is_reported_although_nothing_has_imported_the_task_class(tmp_path: Path):
    (tmp_path / "late_shop.py").write_text(
        "from celery import Celery\n"
        "from django_outbox.celery import OutboxTask\n"
        'app = Celery("late_shop", task_cls=OutboxTask, broker="memory://")\n'
    )
    script = f"""
import sys
import django
from django.conf import settings
entry = {{"BACKEND": "django_outbox.brokers.celery.CeleryPublisher", "OPTIONS": {{"app": "late_shop:app"}}}}
publishers = {{"default": {PUBLISHERS["default"]!r}, "celery": entry}}
settings.configure(INSTALLED_APPS=["django_outbox"], OUTBOX={{"PUBLISHERS": publishers}})
django.setup()
from django_outbox.checks.settings import check_celery
print([message.id for message in check_celery(None)])
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
    )
    assert found.stdout.strip() == "['django_outbox.W031']"


class ReportingTask(Task):  # type: ignore[type-arg]
    """A base that a project had before it used the outbox."""


class Registered(ReportingTask):
    name = "shop.registered"

    def run(self) -> None: ...


def test_w032_names_tasks_that_bypass_the_outbox(app: Celery):
    app.task(name="shop.direct", base=Task, shared=False)(celery_app.note)
    assert found(PUBLISHERS) == []
    app.task(name="shop.report", base=ReportingTask, shared=False)(celery_app.note)
    app.register_task(Registered())
    (problem,) = found(PUBLISHERS)
    assert problem.id == "django_outbox.W032"
    assert "2 tasks of the Celery app 'outbox_tests' (shop.registered, shop.report)" in problem.msg
    assert "Derive the base from OutboxTask" in str(problem.hint)


def test_w032_looks_in_the_modules_that_the_app_names(app: Celery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = (
        "from tests.celery.test_checks import ReportingTask",
        "from tests.support.celery import app",
        "app.app.task(name='shop.included', base=ReportingTask, shared=False)(app.note)",
    )
    (tmp_path / "shop_jobs.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    app.conf.include = ["shop_missing", "shop_jobs"]
    (problem,) = found(PUBLISHERS)
    assert "(shop.included)" in problem.msg


def test_w032_the_class_of_all_tasks_was_replaced(monkeypatch: pytest.MonkeyPatch):
    made = OutboxCelery("shop", set_as_current=False, task_cls=ReportingTask)
    made.task(name="shop.report", shared=False)(celery_app.note)
    monkeypatch.setattr("django_outbox.celery.configuration.app_or_default", lambda: made)
    assert [problem.id for problem in found(PUBLISHERS)] == ["django_outbox.W032"]


def test_plain_tasks_give_no_message(app: Celery, monkeypatch: pytest.MonkeyPatch):
    plain = Celery("plain", set_as_current=False)
    monkeypatch.setattr("django_outbox.celery.configuration.app_or_default", lambda: plain)
    assert found(DEFAULT) == []
    plain.close()
