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


def make_virtualenv(folder: Path, *packages: str, python: str = sys.executable) -> Path:
    """Create a virtualenv with this checkout and packages, such as "gunicorn==27.0.1"; return its Python."""
    subprocess.run([python, "-m", "venv", folder], check=True, stdin=subprocess.DEVNULL)
    scripts = folder / "bin"
    install = [str(scripts / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ended = subprocess.run(
        [*install, "--editable", str(CHECKOUT), "django-environ==0.14.0", *packages],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    return scripts / "python"


class Project:
    """A copy of `mysite/` in a folder, with the Python that runs it. Its processes end with its context.

    Args:
        database: a PostgreSQL or MariaDB database; SQLite without one.
    """

    def __init__(self, folder: Path, python: Path, database: Database | None = None) -> None:
        self.folder, self.python = folder, python
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
        with (self.folder / "mysite/settings.py").open("a") as file:
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
        """Run Python code in which Django is set up, and return what it printed."""
        return self.run("python", "-c", f"import django; django.setup()\n{code}")

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


def get(url: str) -> str:
    """Return the body at a URL, once its server accepts connections."""
    text = ""

    def answers() -> bool:
        nonlocal text
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                text = response.read().decode()
        except ConnectionError:
            return False
        except urllib.error.URLError as error:
            if isinstance(error.reason, ConnectionError):
                return False
            raise
        return True

    eventually(answers, url, seconds=PATIENCE)
    return text
