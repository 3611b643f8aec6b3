"""Output helpers of the commands: a progress bar, plurals and short paths."""

import sys
import time
from pathlib import Path
from types import TracebackType
from typing import IO

WIDTH = 30
"""Width of the bar in characters."""

REFRESH = 0.1
"""Seconds between two redraws."""


class ProgressBar:
    """A line `label [####....] 120/300` that is redrawn in place. Without a terminal it draws nothing.

    Args:
        label: name of the work.
        total: number of items.
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
        """Add finished items."""
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


def plural(count: int, noun: str) -> str:
    """Return a number and its noun: `1 order`, `1,200 orders`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def short_path(path: str | Path) -> str:
    """Return the path relative to the current directory, or in full if it is not below it."""
    full = Path(path).resolve()
    return str(full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full)
