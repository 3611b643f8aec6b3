"""Python scripts that run as processes, as a pytest plugin."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripts import StartProcess


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartProcess]:
    """Start Python scripts as processes, and kill them at the end."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_process(script: str, *arguments: str, prefix: tuple[str, ...] = (), **options: Any) -> Any:
        path = tmp_path / f"{len(processes)}.py"
        path.write_text(script)
        process = subprocess.Popen(
            [*prefix, sys.executable, str(path), *arguments],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": os.pathsep.join(sys.path)},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        if process.poll() is None:
            process.kill()
        # pytest shows it where a test failed.
        print(*process.communicate())  # noqa: T201
