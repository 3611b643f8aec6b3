"""A small Django project in a folder, and the virtualenv that runs it with packages as people install them."""

import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tests.support.databases import Database
from tests.support.shop import PATIENCE, Process
from tests.support.waiting import eventually

CHECKOUT = Path(__file__).resolve().parent.parent.parent

CELERY = """
from django_outbox.celery import OutboxCelery

app = OutboxCelery("mysite")
app.config_from_object("django.conf:settings", namespace="CELERY")


@app.task(name="send_receipt")
def send_receipt(number):
    return number
"""
"""The module `mysite.celery` of a project with a Celery app and a task."""


def make_virtualenv(folder: Path, *packages: str, python: str = sys.executable) -> Path:
    """Create a virtualenv with this checkout and packages, such as "gunicorn==27.0.1"; return its Python.

    A virtualenv that is complete already is left as it is.
    """
    complete = folder / "complete"
    if complete.exists():
        return folder / "bin/python"
    subprocess.run([python, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin/python"), "install"]
    ended = subprocess.run(
        [*pip, "--quiet", "--no-compile", "--editable", str(CHECKOUT), "django-environ==0.14.0", *packages],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    complete.touch()
    return folder / "bin/python"


class Project:
    """A copy of `mysite/` in a folder, with the Python that runs it. Its processes end with its context.

    Args:
        database: a PostgreSQL or MariaDB database; SQLite without one.
    """

    def __init__(self, folder: Path, python: Path, database: Database | None = None) -> None:
        self.folder, self.python, self.database = folder, python, database
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "PYTHON"))},
            "DJANGO_SETTINGS_MODULE": "mysite.settings",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(folder),
            "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._processes: list[Process] = []
        shutil.copytree(Path(__file__).parent / "mysite", folder / "mysite")
        url = database.url if database else f"sqlite:///{folder}/db.sqlite3"
        self.configure(f"import environ\nDATABASES = {{'default': environ.Env.db_url_config({url!r})}}\n")

    def configure(self, text: str) -> None:
        """Append to the settings."""
        self.append("mysite/settings.py", text)

    def append(self, path: str, text: str) -> None:
        with (self.folder / path).open("a") as file:
            file.write(f"\n{text}\n")

    def write(self, path: str, text: str) -> None:
        """Write a file of the project, such as `mysite/tasks.py`."""
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def run(self, *command: str, code: int = 0) -> str:
        """Run a program of the virtualenv to its end, expect its exit code, and return what it printed."""
        ended = subprocess.run(
            [self.python.parent / command[0], *command[1:]],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert ended.returncode == code, ended.stdout
        return ended.stdout

    def manage(self, *arguments: str, code: int = 0) -> str:
        return self.run("django-admin", *arguments, code=code)

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb", "--verbosity=0")

    def execute(self, code: str) -> str:
        """Run Python code after Django is set up, and return what it printed."""
        return self.run("python", "-c", f"import django; django.setup()\n{code}")

    def place_orders(self, count: int) -> None:
        """Save orders, each with its message, by a program that ends."""
        place = f"[views.place_order(RequestFactory().get('/'), str(n)) for n in range({count})]"
        self.execute(f"from django.test import RequestFactory; from mysite import views; {place}")

    def count(self, condition: str = "1 = 1", table: str = "django_outbox_outboxmessage") -> int:
        """Return how many rows fulfil a condition in SQL."""
        assert self.database, "only for a project with `POSTGRESQL`"
        return self.database.count(condition, table)

    def sessions(self) -> int:
        """Return how many sessions of the project's own PostgreSQL database are open."""
        assert self.database, "only for a project with `POSTGRESQL`"
        return self.database.count(
            "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
            "pg_stat_activity",
        )

    def start(self, *command: str) -> Process:
        """Start a program of the virtualenv that keeps running."""
        log = self.folder / f"process-{len(self._processes)}.log"
        process = Process([str(self.python.parent / command[0]), *command[1:]], log, self.environment, self.folder)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        for process in reversed(self._processes):
            if process.running:
                process.kill()


def get(url: str, status: int = 200) -> str:
    """Return the body at a URL, once its server accepts connections, and expect its status."""

    def answer() -> tuple[int, str] | None:
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionRefusedError):
                return None
            raise

    found, body = eventually(answer, url, seconds=PATIENCE)
    assert found == status, body[-2000:]
    return str(body)
