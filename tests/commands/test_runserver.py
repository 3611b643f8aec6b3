"""In development, `runserver` delivers if the settings ask for it."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.ports import free_port
from tests.support.project_files import ROOT
from tests.support.terminals import on_a_terminal

SETTINGS = """
DEBUG = {debug}
SECRET_KEY = "only for tests"
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{folder}/db.sqlite3"}}}}
INSTALLED_APPS = ["django.contrib.staticfiles", "django_outbox", "shop"]
STATIC_URL = "static/"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
OUTBOX = {{
    "DELIVER_IN_RUNSERVER": True,
    "PUBLISHERS": {{"default": {{"BACKEND": "django_outbox.handlers.HandlersPublisher"}}}},
}}
"""
HANDLERS = """
from django_outbox.handlers import handler

@handler("order.created")
def first(event, message):
    print("handled", event)
"""
STARTED = "started on"
NOT_MIGRATED = "The outbox's messages are not delivered yet: The database 'default' lacks the table"


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables."""
    folder = write_project(tmp_path_factory.mktemp("migrated"))
    migrate(folder)
    return folder / "db.sqlite3"


@pytest.fixture
def project(tmp_path: Path, migrated: Path, request: pytest.FixtureRequest) -> Path:
    shutil.copy(migrated, tmp_path)
    return write_project(tmp_path, debug=getattr(request, "param", True))


def write_project(folder: Path, *, debug: bool = True) -> Path:
    (folder / "shop").mkdir()
    (folder / "shop" / "__init__.py").touch()
    (folder / "shop" / "handlers.py").write_text(HANDLERS)
    (folder / "urls.py").write_text("urlpatterns = []")
    (folder / "settings.py").write_text(SETTINGS.format(folder=folder, debug=debug))
    return folder


def manage(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "django", *arguments]


def migrate(project: Path) -> None:
    subprocess.run(manage("migrate", "--verbosity=0"), env=environment(project), check=True)


def environment(project: Path) -> dict[str, str]:
    path = os.pathsep.join([str(project), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "settings", "TERM": "dumb"}


def count(lines: list[str], part: str) -> int:
    return "\n".join(lines).count(part)


def enqueue(project: Path, number: int) -> None:
    code = (
        "from django.db import transaction\nfrom django_outbox import enqueue\n"
        f"with transaction.atomic(): enqueue('order.created', {{'id': {number}}})"
    )
    subprocess.run(manage("shell", "--command", code), env=environment(project), check=True)


@pytest.mark.slow
def test_runserver_delivers_and_restarts_its_relay(project: Path):
    with on_a_terminal(manage("runserver", str(free_port())), columns=200, env=environment(project)) as terminal:
        lines = terminal.until(lambda lines: count(lines, STARTED) == 1)
        assert count(lines, "This server also delivers the outbox's messages") == 1
        enqueue(project, 1)
        terminal.until(lambda lines: count(lines, "handled {'id': 1}") == 1)
        (project / "shop" / "handlers.py").write_text(HANDLERS.replace("handled", "handled again"))
        lines = terminal.until(lambda lines: count(lines, STARTED) == 2)
        assert (count(lines, "Relay ended after"), count(lines, "Traceback")) == (1, 0)
        enqueue(project, 2)
        terminal.until(lambda lines: count(lines, "handled again {'id': 2}") == 1)
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.until_end()
    # The first has reported what it delivered, and signed off. After Ctrl-C there are 0.25 s for that, too little on a
    # busy machine, so the order of the end is tested in tests.relay.test_reports.
    with closing(sqlite3.connect(project / "db.sqlite3")) as connection:
        reports = connection.execute("SELECT processed, stopped_at IS NOT NULL FROM django_outbox_heartbeat").fetchall()
    assert reports[0] == (1, 1)


@pytest.mark.slow
def test_runserver_waits_for_migrate_and_then_delivers(project: Path):
    (project / "db.sqlite3").unlink()
    with on_a_terminal(manage("runserver", str(free_port())), columns=200, env=environment(project)) as terminal:
        lines = terminal.until(lambda lines: count(lines, NOT_MIGRATED) == 1)
        assert 'Run "manage.py migrate --database=default"' in "".join(lines)
        migrate(project)
        enqueue(project, 1)
        lines = terminal.until(lambda lines: count(lines, "handled {'id': 1}") == 1)
    assert (count(lines, NOT_MIGRATED), count(lines, "Traceback")) == (1, 0)


@pytest.mark.slow
def test_runserver_abandons_a_handler_that_takes_too_long(project: Path):
    handlers = project / "shop" / "handlers.py"
    handlers.write_text(HANDLERS.replace("print(", "print('begun', flush=True); import time; time.sleep(600); print("))
    with on_a_terminal(manage("runserver", str(free_port())), columns=200, env=environment(project)) as terminal:
        terminal.until(lambda lines: count(lines, STARTED) == 1)
        enqueue(project, 1)
        terminal.until(lambda lines: count(lines, "begun") == 1)
        handlers.write_text(HANDLERS)
        lines = terminal.until(lambda lines: count(lines, "handled {'id': 1}") == 1)
    assert count(lines, "Stopped before 1 batch ended. The messages are still pending.") == 1
    assert count(lines, "Traceback") == 0


@pytest.mark.slow
@pytest.mark.parametrize("project", [False], indirect=True)
def test_runserver_delivers_nothing_without_debug(project: Path):
    command = manage("runserver", "--insecure", str(free_port()))
    with on_a_terminal(command, columns=200, env=environment(project)) as terminal:
        lines = terminal.until(lambda lines: count(lines, "Quit the server"))
        os.killpg(terminal.process.pid, signal.SIGINT)
        lines = terminal.until_end()
    assert count(lines, "delivers") == 0
