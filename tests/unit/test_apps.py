"""Modules of events and handlers are imported when Django starts."""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["shop", OUTBOX_APP]
OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}
"""

SUBCLASS = """
from django_outbox.apps import DjangoOutboxConfig

class OutboxConfig(DjangoOutboxConfig):
    modules = ("outbox_handlers",)
"""


def set_up(folder: Path, app: str) -> "subprocess.CompletedProcess[str]":
    """Start Django with an app whose module `handlers` is not for the outbox and cannot be imported."""
    (shop := folder / "shop").mkdir()
    (shop / "__init__.py").touch()
    (shop / "handlers.py").write_text("import a_module_that_is_missing")
    (shop / "outbox_handlers.py").write_text("print('imported')")
    (shop / "outbox.py").write_text(SUBCLASS)
    (folder / "shop_settings.py").write_text(SETTINGS.replace("OUTBOX_APP", repr(app)))
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop_settings"}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-c", "import django; django.setup()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_an_error_of_such_a_module_ends_the_process(tmp_path: Path):
    ended = set_up(tmp_path, "django_outbox")
    assert ended.returncode == 1
    assert "No module named 'a_module_that_is_missing'" in ended.stderr


def test_a_project_names_the_modules(tmp_path: Path):
    ended = set_up(tmp_path, "shop.outbox.OutboxConfig")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "imported\n", "")


def test_an_older_django_is_refused_by_name():
    code = "import django; django.VERSION = (5, 2, 0, 'final', 0); import django_outbox.contrib.django_tasks"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: django_outbox.contrib.django_tasks needs Django 6.0 or newer" in ended.stderr
