"""The tutorial, followed step by step as a reader would, against the real broker."""

import os
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from django.conf import settings

ROOT = Path(__file__).resolve().parent.parent
TUTORIAL = ROOT / "docs" / "tutorial" / "first-message.md"

NOT_REPEATED = (
    *("mkdir", "cd", "python -m venv", ".", "pip", "docker"),
    *("python manage.py createsuperuser", "python manage.py runserver"),
)

pytestmark = pytest.mark.slow
"""Commands that only prepare the reader's machine, ask questions, or never end."""


@pytest.fixture
def text() -> Iterator[str]:
    """The tutorial, with the broker of this run and names of its own there, which are deleted at the end."""
    suffix = uuid.uuid4().hex[:8]
    exchange, queue = f"tutorial-shop-{suffix}", f"tutorial-orders-{suffix}"
    text = TUTORIAL.read_text()
    for told, used in {
        "amqp://guest:guest@localhost:5672/%2F": settings.AMQP_URL,
        '"exchange": "shop"': f'"exchange": "{exchange}"',
        'exchange="shop"': f'exchange="{exchange}"',
        "exchange 'shop'": f"exchange '{exchange}'",
        '"orders"': f'"{queue}"',
    }.items():
        assert told in text
        text = text.replace(told, used)
    yield text
    connection = pika.BlockingConnection(pika.URLParameters(settings.AMQP_URL))
    channel = connection.channel()
    channel.queue_delete(queue)
    channel.exchange_delete(exchange)
    connection.close()


def test_the_tutorial_does_what_it_says(text: str, tmp_path: Path):
    for language, caption, code in re.findall(
        r"^```(?:\{code-block\} )?(\w+)\n(?::caption: ([^\n]+)\n\n)?(.*?)^```$", text, re.MULTILINE | re.DOTALL
    ):
        if language == "console":
            for command, told in re.findall(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", code, re.MULTILINE):
                follow(command, told, tmp_path)
        else:
            path = tmp_path / caption.removesuffix(" (at the end)")
            before = path.read_text() if caption.endswith(" (at the end)") else ""
            path.write_text(before + code)


def follow(command: str, told: str, folder: Path) -> None:
    """Run a command of the tutorial and compare what it prints; … in the tutorial stands for anything."""
    if any(command == start or command.startswith(f"{start} ") for start in NOT_REPEATED):
        return
    words = shlex.split(command)
    programs = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [*programs[words[0]], *words[1:]],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ("Error" in told or "TransactionRequired" in told), f"$ {command}\n{done.stdout}"
    for line in told.splitlines():
        pattern = ".*".join(map(re.escape, line.split("…")))
        assert re.search(rf"^{pattern}$", done.stdout, re.MULTILINE), (
            f"$ {command}\nhas no line {line!r}:\n{done.stdout}"
        )
