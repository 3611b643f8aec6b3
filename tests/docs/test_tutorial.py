"""The tutorials, followed step by step as a reader would, against the real broker."""

import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from django.conf import settings

from tests.support.ports import free_port
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIALS = ROOT / "docs" / "tutorial"

NOT_REPEATED = (
    *("mkdir", "cd", "python -m venv", ".", "pip", "docker", "until docker"),
    "python manage.py createsuperuser",
)
"""Commands that only prepare the reader's machine, or ask questions."""

SERVER = "python manage.py runserver"
"""The command that keeps running while the tutorial continues."""

PATIENCE = 60
"""Seconds within which an expected line must appear."""

pytestmark = pytest.mark.slow


class Server:
    """`runserver`, in the reader's only terminal until Ctrl+C."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        assert not self.is_running, "the terminal is occupied"
        self._log.write_text("")
        self._read = 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments(f"{SERVER} {self._port}"),
                cwd=self._folder,
                env=environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def open(self, path: str) -> None:
        eventually(lambda: self._answers(path), seconds=PATIENCE)

    def wait_for(self, line: str) -> None:
        """Wait for a line after those that were seen already, so that the order of the output counts."""
        expected = re.compile(pattern(line), re.MULTILINE)
        shown = f"the terminal shows {line!r}"
        found = eventually(lambda: expected.search(self._log.read_text(), self._read), shown, seconds=PATIENCE)
        self._read = found.end()

    def stop(self) -> None:
        """Press Ctrl+C, which reaches all processes of the terminal."""
        assert self._process
        os.killpg(self._process.pid, signal.SIGINT)
        assert self._process.wait(PATIENCE) == 0, self._log.read_text()
        self._process = None

    def close(self) -> None:
        if self._process and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/{path}", timeout=PATIENCE) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False


@pytest.fixture
def text() -> Iterator[str]:
    """The first two tutorials, with the broker of this run and their own names there, which are deleted at the end."""
    suffix = uuid.uuid4().hex[:8]
    exchange, queue = f"tutorial-shop-{suffix}", f"tutorial-orders-{suffix}"
    text = "".join((TUTORIALS / page).read_text() for page in ("first-message.md", "first-broker.md"))
    for written, used in {
        "amqp://guest:guest@localhost:5672/%2F": settings.AMQP_URL,
        '"exchange": "shop"': f'"exchange": "{exchange}"',
        'exchange="shop"': f'exchange="{exchange}"',
        "exchange 'shop'": f"exchange '{exchange}'",
        '"orders"': f'"{queue}"',
    }.items():
        assert written in text
        text = text.replace(written, used)
    yield text
    connection = pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))
    channel = connection.channel()
    channel.queue_delete(queue)
    channel.exchange_delete(exchange)
    connection.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "project"
    folder.mkdir()
    server = Server(folder, tmp_path / "server.log")
    yield server
    server.close()


def test_the_tutorials_of_the_first_message_and_of_a_broker_do_what_they_say(text: str, server: Server, tmp_path: Path):
    opened = follow_all(text, tmp_path / "project", server)
    assert len(opened) == 4
    assert not server.is_running


def test_the_tutorial_of_the_first_handler_does_what_it_says(server: Server, tmp_path: Path):
    follow_all((TUTORIALS / "first-handler.md").read_text(), tmp_path / "project", server)


def follow_all(text: str, folder: Path, server: Server) -> list[str]:
    """Follow all blocks of a tutorial, open the pages that it names between them, and return these pages."""
    opened = []
    for path, language, caption, code in re.findall(
        r"<http://127\.0\.0\.1:8000/([^>]*)>|^```(?:\{code-block\} )?(\w+)\n(?::caption: ([^\n]+)\n\n)?(.*?)^```$",
        text,
        re.MULTILINE | re.DOTALL,
    ):
        if path:
            server.open(path)
            opened.append(path)
        elif language == "console":
            follow_block(code, folder, server)
        else:
            file = folder / caption.removesuffix(" (at the end)")
            before = file.read_text() if caption.endswith(" (at the end)") else ""
            file.write_text(before + code)
    return opened


def follow_block(code: str, folder: Path, server: Server) -> None:
    """Run the commands of a block in the terminal; while the server runs there, wait for its lines."""
    for command, expected in re.findall(r"^(?:\$ (.+)\n)?((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
        if command == SERVER:
            server.start()
        if command and not server.is_running:
            follow(command, expected, folder)
            continue
        for line in expected.splitlines():
            if line == "^C":
                server.stop()
            else:
                server.wait_for(line)


def follow(command: str, expected: str, folder: Path) -> None:
    """Run a command of the tutorial and compare its output; … in the tutorial stands for any text."""
    if not is_repeated(command):
        return
    done = subprocess.run(
        arguments(command),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    fails = re.search(r"^[\w.]+(Error|TransactionRequired):", expected, re.MULTILINE)
    assert done.returncode == bool(fails), f"$ {command}\n{done.stdout}"
    for line in expected.splitlines():
        assert re.search(pattern(line), done.stdout, re.MULTILINE), f"$ {command}\nhas no line {line!r}:\n{done.stdout}"


def is_repeated(command: str) -> bool:
    return not any(command == start or command.startswith(f"{start} ") for start in NOT_REPEATED)


def arguments(command: str) -> list[str]:
    words = shlex.split(command)
    programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
    return [*programs[words[0]], *words[1:]]


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def pattern(line: str) -> str:
    return rf"^{'.*'.join(map(re.escape, line.split('…')))}$"
