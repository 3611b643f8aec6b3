"""Python scripts that run as processes, as a pytest plugin."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import StartProcess

LONGEST = 240.0
"""Seconds after which a process is killed: a test that waits for a line from it fails then, and ends."""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartProcess]:
    """Start Python scripts as processes, and kill them at the end, or when they take too long."""
    processes: list[subprocess.Popen[bytes]] = []
    watchdogs: list[threading.Timer] = []

    def start_process(script: str, *arguments: str, prefix: tuple[str, ...] = (), **options: Any) -> Any:
        path = tmp_path / f"{len(processes)}.py"
        path.write_text(script)
        process = subprocess.Popen(
            [*prefix, sys.executable, str(path), *arguments],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.pathsep.join(sys.path)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        processes.append(process)
        watchdogs.append(threading.Timer(LONGEST, process.kill))
        watchdogs[-1].start()
        return process

    yield start_process
    for watchdog in watchdogs:
        watchdog.cancel()
    for process in processes:
        if process.poll() is None:
            process.kill()
        # pytest shows it where a test failed.
        print(*process.communicate())  # noqa: T201
