"""What the commands show on a terminal: how far a long run has come, and paths as they are best read."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

WIDTH = 30
"""Characters of the bar."""

REFRESH = 0.1
"""Seconds between two drawings of the line."""


class ProgressBar:
    """Draws `label [####....] 120/300` over and over on one line, and nothing where there is no terminal.

    Args:
        label: what is being done.
        total: how many there are to do.
        stream: the terminal; standard error by default.
    """

    def __init__(self, label: str, total: int, stream: IO[str] | None = None) -> None:
        self._label = label
        self._total = total
        self._stream = stream or sys.stderr
        self._done = 0
        self._drawn = 0.0

    def __enter__(self) -> "ProgressBar":
        self._draw()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self._stream.isatty():
            self._stream.write("\r\x1b[2K")
            self._stream.flush()

    def advance(self, count: int = 1) -> None:
        """Note that so many more are done."""
        self._done += count
        if time.monotonic() - self._drawn >= REFRESH:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._stream.isatty():
            filled = WIDTH * min(self._done, self._total) // max(self._total, 1)
            bar = "#" * filled + "." * (WIDTH - filled)
            self._stream.write(f"\r\x1b[2K{self._label} [{bar}] {self._done:,}/{self._total:,}")
            self._stream.flush()


def short_path(path: str | Path) -> str:
    """Return the path as seen from the current directory, or in full where it is not below that."""
    full = Path(path).resolve()
    return str(full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full)
