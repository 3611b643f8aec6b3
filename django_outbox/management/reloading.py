"""Reload of a command in development: it restarts when a file of the project changes, as `runserver` does.

A parent process starts the command again and again. In the child, a thread watches the files; a change stops the
command as SIGTERM does, so that the batches in hand are finished.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from django.utils import autoreload

CHANGED = 3
"""The exit code after a change, as in Django."""


def is_child() -> bool:
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


def supervise(announce: Callable[[str], object]) -> int:
    """Run this process's command in a child, again after each change, and return the exit code of the last one.

    A command that fails, because of a syntax error for example, is started again after the next change.
    """
    received = False
    child: subprocess.Popen[bytes] | None = None

    def forward(number: int, _frame: FrameType | None) -> None:
        nonlocal received
        received = True
        # Ctrl-C reaches all processes of the terminal.
        if number == signal.SIGTERM and child is not None:
            child.send_signal(number)
        elif child is None or child.returncode is not None:
            sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    while True:
        # A change while the child starts counts, too.
        times = read_times()
        environ = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environ, close_fds=False)  # noqa: S603
        code = child.wait()
        if received or code == 0:
            return code if code >= 0 else 128 - code
        if code != CHANGED:
            announce("Waiting for a change of the code; Ctrl-C ends.")
            wait_for_change(times)


def read_times() -> dict[Path, float]:
    """Return when the files that this process has imported were changed."""
    return dict(autoreload.StatReloader().snapshot_files())


def wait_for_change(times: dict[Path, float]) -> None:
    """Return when one of these files has changed, or one that was imported later."""
    while True:
        now = read_times()
        if any(now.get(path) != at for path, at in times.items()):
            return
        times = now
        time.sleep(autoreload.StatReloader.SLEEP_TIME)


class Watch:
    """Stops this process, a child of `supervise`, when a file changes."""

    def __init__(self) -> None:
        self.changed = False
        threading.Thread(target=self._watch, args=(read_times(),), name="outbox-reload", daemon=True).start()

    def _watch(self, times: dict[Path, float]) -> None:
        wait_for_change(times)
        self.changed = True
        os.kill(os.getpid(), signal.SIGTERM)
