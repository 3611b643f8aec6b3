"""django-celery-outbox in a process of its own, because it needs packages that this project does not install."""

import json
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from django.db import connection

from tests.benchmarks.measuring import BenchmarkError

ROOT = Path(__file__).resolve().parent.parent.parent


class Rival:
    """Runs `rival_script.py` on this benchmark's database, queue and broker.

    Args:
        python: the interpreter.
        url: the broker.
        queue: the name of the queue, which is a quorum queue.
    """

    def __init__(self, python: str, url: str, queue: str) -> None:
        names = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT")
        database = {name: connection.settings_dict[name] for name in names}
        options = {"database": database, "url": url, "queue": queue}
        try:
            self._process = subprocess.Popen(
                [python, "-m", "tests.benchmarks.rival_script", json.dumps(options)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        except OSError as error:
            raise BenchmarkError(f"--rival {python} cannot be started: {error}") from error

    def measure(self, case: str, count: int) -> float:
        """Return the seconds that a case takes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # If the process has ended, the output is empty, too.
        with suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps([case, count])}\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkError("django-celery-outbox failed; see above.")
        return float(line)

    def __enter__(self) -> "Rival":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()
