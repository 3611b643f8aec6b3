"""The tutorials, followed step by step as a reader would, against the real broker."""

import os
import re
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
import redis
from django.conf import settings

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parent.parent.parent
TUTORIALS = ROOT / "docs" / "tutorial"

NOT_REPEATED = (
    *("mkdir", "cd", "python -m venv", ".", "pip", "docker", "until docker"),
    *("python manage.py createsuperuser", "python manage.py runserver"),
)
"""Commands that only prepare the reader's machine, ask questions, or never end."""

PATIENCE = 60
"""Seconds within which an expected line must appear."""

pytestmark = pytest.mark.slow


class Terminal:
    """One of the reader's other terminals, in which a command keeps running while the tutorial continues."""

    def __init__(self, folder: Path, log: Path) -> None:
        self._folder = folder
        self._log = log
        self._log.touch()
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0

    def follow(self, code: str) -> None:
        """Follow a block: start its commands, press its Ctrl+C, and wait for its other lines to appear."""
        for line in code.splitlines():
            if line.startswith("$ "):
                self._start(line.removeprefix("$ "))
            elif line == "^C":
                self._interrupt()
            else:
                self._wait_for(line)

    def close(self) -> None:
        """End the command that is still running."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _start(self, command: str) -> None:
        if is_repeated(command):
            assert self._process is None or self._process.poll() is not None, "the terminal is occupied"
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    arguments(command), cwd=self._folder, env=environment(), stdout=log, stderr=subprocess.STDOUT
                )

    def _interrupt(self) -> None:
        assert self._process
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(PATIENCE) == 0, self._log.read_text()

    def _wait_for(self, line: str) -> None:
        """Wait for a line after those that were seen already, so that the order of the output counts."""
        expected = re.compile(pattern(line), re.MULTILINE)
        eventually(lambda: expected.search(self._log.read_text(), self._read) or self._has_ended(), seconds=PATIENCE)
        found = expected.search(self._log.read_text(), self._read)
        assert found, f"the terminal shows no line {line!r}:\n{self._log.read_text()}"
        self._read = found.end()

    def _has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None


@pytest.fixture
def text() -> Iterator[str]:
    """The first two tutorials, with the broker of this run and their own names there, which are deleted at the end."""
    suffix = uuid.uuid4().hex[:8]
    exchange, queue, stream = f"tutorial-shop-{suffix}", f"tutorial-orders-{suffix}", f"tutorial-stream-{suffix}"
    text = "".join((TUTORIALS / page).read_text() for page in ("first-message.md", "first-broker.md"))
    for written, used in {
        "amqp://guest:guest@localhost:5672/%2F": settings.AMQP_URL,
        '"exchange": "shop"': f'"exchange": "{exchange}"',
        'exchange="shop"': f'exchange="{exchange}"',
        "exchange 'shop'": f"exchange '{exchange}'",
        '"stream": "orders"': f'"stream": "{stream}"',
        '{"orders": ">"}': f'{{"{stream}": ">"}}',
        '("orders", "billing"': f'("{stream}", "billing"',
        "redis://localhost:6379/0": settings.REDIS_URL,
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
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        client.delete(stream)


@pytest.fixture
def terminals(tmp_path: Path) -> Iterator[dict[str, Terminal]]:
    """The reader's other terminals, by the captions of their blocks."""
    names = ("Second terminal", "Third terminal")
    project = tmp_path / "project"
    project.mkdir()
    terminals = {name: Terminal(project, tmp_path / f"{name}.log") for name in names}
    yield terminals
    for terminal in terminals.values():
        terminal.close()


def test_the_tutorials_of_the_first_message_and_of_a_broker_do_what_they_say(
    text: str, terminals: dict[str, Terminal], tmp_path: Path
):
    assert terminals.keys() <= follow_all(text, tmp_path / "project", terminals)


def test_the_tutorial_of_the_first_handler_does_what_it_says(tmp_path: Path):
    follow_all((TUTORIALS / "first-handler.md").read_text(), tmp_path, {})


def follow_all(text: str, folder: Path, terminals: dict[str, Terminal]) -> set[str]:
    """Follow all blocks of a tutorial and return their captions."""
    captions = set()
    for language, caption, code in re.findall(
        r"^```(?:\{code-block\} )?(\w+)\n(?::caption: ([^\n]+)\n\n)?(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        captions.add(caption)
        if caption in terminals:
            terminals[caption].follow(code)
        elif language == "console":
            for command, expected in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
                follow(command, expected, folder)
        else:
            path = folder / caption.removesuffix(" (at the end)")
            before = path.read_text() if caption.endswith(" (at the end)") else ""
            path.write_text(before + code)
    return captions


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
