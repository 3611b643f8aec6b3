"""A real terminal of any width, and an emulation of what its screen shows."""

import fcntl
import io
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pyte

PATIENCE = 60.0
"""Seconds within which a screen must show what is expected."""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TerminalProcess:
    def __init__(self, command: list[str], *, columns: int, env: dict[str, str]) -> None:
        lines = 24
        self._keyboard, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen = pyte.HistoryScreen(columns, lines, history=5000)
        self._stream = pyte.ByteStream(self._screen)
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True, env=env
        )
        os.close(terminal)

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, and those that were scrolled off it."""
        above = ["".join(line[x].data for x in range(self._screen.columns)) for line in self._screen.history.top]
        return [line.rstrip() for line in [*above, *self._screen.display]]

    def until(self, condition: Callable[[list[str]], object]) -> list[str]:
        """Read until the screen fulfils a condition, and return its lines."""
        deadline = time.monotonic() + PATIENCE
        while not condition(lines := self.shown):
            assert time.monotonic() < deadline, "\n".join(lines)
            assert self._read(0.2), "the process ended:\n" + "\n".join(self.shown)
        return lines

    def until_end(self) -> list[str]:
        """Read until the process ends, and return the lines of the screen."""
        deadline = time.monotonic() + PATIENCE
        while self._read(0.2):
            assert time.monotonic() < deadline, "\n".join(self.shown)
        self.process.wait(PATIENCE)
        return self.shown

    def press(self, key: bytes) -> None:
        os.write(self._keyboard, key)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        os.close(self._keyboard)

    def _read(self, seconds: float) -> bool:
        """Read what has come, and return False if no more can come."""
        if not select.select([self._keyboard], [], [], seconds)[0]:
            return True
        data = b""
        # Linux raises an error when the last process has closed the terminal.
        with suppress(OSError):
            data = os.read(self._keyboard, 65536)
        self._stream.feed(data)
        return bool(data)


@contextmanager
def on_a_terminal(command: list[str], *, columns: int, env: dict[str, str]) -> Iterator[TerminalProcess]:
    """Run a command on a terminal of this width, and kill it at the end."""
    terminal = TerminalProcess(command, columns=columns, env=env)
    try:
        yield terminal
    finally:
        terminal.close()
