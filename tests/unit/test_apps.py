"""Modules of events and handlers are imported when Django starts."""

import os
import subprocess
import sys
from pathlib import Path

SETTINGS = """
SECRET_KEY = "x"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["shop", "django_outbox"]
OUTBOX = {"PUBLISHERS": {"default": {"BACKEND": "django_outbox.brokers.memory.MemoryPublisher"}}}
"""


def set_up(folder: Path, handlers: str) -> "subprocess.CompletedProcess[str]":
    """Start Django with an app that has this module `handlers`."""
    (shop := folder / "shop").mkdir()
    (shop / "__init__.py").touch()
    (shop / "handlers.py").write_text(handlers)
    (folder / "shop_settings.py").write_text(SETTINGS)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop_settings"}
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *sys.path])
    command = [sys.executable, "-c", "import django; django.setup()"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_an_error_of_such_a_module_ends_the_process(tmp_path: Path):
    ended = set_up(tmp_path, "import a_module_that_is_missing")
    assert ended.returncode == 1
    assert "No module named 'a_module_that_is_missing'" in ended.stderr


def test_the_modules_of_each_app_are_imported(tmp_path: Path):
    ended = set_up(tmp_path, "print('imported')")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "imported\n", "")


def test_an_older_django_is_refused_by_name():
    code = "import django; django.VERSION = (5, 2, 0, 'final', 0); import django_outbox.contrib.django_tasks"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert "ImportError: django_outbox.contrib.django_tasks needs Django 6.0 or newer" in ended.stderr
