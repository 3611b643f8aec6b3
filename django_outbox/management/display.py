"""Where the live line is drawn: a terminal, on which other lines appear above it."""

import io
import logging
import os
import sys
import threading
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Protocol

from django_outbox.management.figures import LiveFigures

DEFAULT_WIDTH = 80
WIPE = "\r\x1b[2K"
MIN_REASON = 12
"""Minimum characters of an outage's reason that are worth showing."""


class Display(Protocol):
    """Shows figures at the bottom of a terminal. Thread-safe; a terminal that is gone is no error."""

    def show(self, figures: LiveFigures) -> None:
        """Show these figures instead of the last ones."""

    def write_above(self, text: str) -> None:
        """Write lines above the figures."""

    def close(self) -> None:
        """Wipe the figures; nothing is drawn any more."""


class PlainDisplay:
    """Shows as many figures as fit into one line of the terminal.

    Args:
        stream: the terminal.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._line = ""
        self._is_closed = False
        self._lock = threading.RLock()

    def show(self, figures: LiveFigures) -> None:
        with self._lock:
            if self._is_closed:
                return
            # A terminal may be resized at any time. Its last column is left free, because some wrap there.
            self._line = line_of(figures, terminal_width(self._stream) - 1)
            self._write(f"{WIPE}{self._line}")

    def write_above(self, text: str) -> None:
        with self._lock:
            self._write(f"{'' if self._is_closed else WIPE}{text}\n{self._line}")

    def close(self) -> None:
        with self._lock:
            self._write(WIPE)
            self._line = ""
            self._is_closed = True

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(text)
            self._stream.flush()


def make_display(stream: IO[str]) -> Display:
    """Return a display by `rich` if it is installed (the extra `terminal`), and otherwise a plain line."""
    try:
        from django_outbox.management.rich_display import RichDisplay  # noqa: PLC0415 - needs rich
    except ImportError:
        return PlainDisplay(stream)
    return RichDisplay(stream)


def terminal_width(stream: IO[str]) -> int:
    """Return the number of columns of a terminal."""
    with suppress(OSError, ValueError):
        if columns := os.get_terminal_size(stream.fileno()).columns:
            return columns
    return DEFAULT_WIDTH


def line_of(figures: LiveFigures, width: int) -> str:
    """Return the figures on one line of at most `width` columns; the least important ones are left out first."""
    parts: list[str] = []
    for outage in figures.outages[:1]:
        text = figures.describe_outage(outage)
        if (excess := columns_of(text) - width) > 0:
            text = figures.describe_outage(outage, max(len(outage.reason) - excess, MIN_REASON))
        parts.append(text)
    parts += [figures.left_text, *figures.texts, figures.served]
    return clipped(fitting(filter(None, parts), width), width)


def fitting(parts: Iterable[str], width: int) -> str:
    """Join the first parts that fit into a width; the first one is there in any case."""
    line = ""
    for part in parts:
        longer = f"{line} · {part}" if line else part
        if line and columns_of(longer) > width:
            break
        line = longer
    return line


def clipped(text: str, width: int) -> str:
    """Return a text, cut to a width in columns of a terminal."""
    if columns_of(text) <= width:
        return text
    while text and columns_of(text) > width - 1:
        text = text[:-1]
    return f"{text}…"


def columns_of(text: str) -> int:
    """Return the number of columns that a terminal needs for a text; some letters need two."""
    return sum(1 + (unicodedata.east_asian_width(letter) in "WF") for letter in text)


class LinesAbove(io.TextIOBase):
    """A stream whose lines appear above the figures of a display.

    Args:
        display: the display.
        stream: the terminal that it replaces.
    """

    def __init__(self, display: Display, stream: IO[str]) -> None:
        self._display = display
        self._stream = stream
        self._rest = ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._rest = (self._rest + text).split("\n")
            if lines:
                self._display.write_above("\n".join(lines))
        return len(text)

    def finish(self) -> None:
        """Write a last line that has no end."""
        with self._lock:
            rest, self._rest = self._rest, ""
            if rest:
                self._display.write_above(rest)

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()

    def fileno(self) -> int:
        return self._stream.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The terminal's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"


@contextmanager
def everything_above(display: Display) -> Iterator[None]:
    """Let everything that the process writes to its terminal appear above the figures, until the end of the block.

    Standard output and standard error are replaced if they are terminals, and so are they in the handlers of `logging`,
    which keep the stream that they were made with.
    """
    names = [name for name in ("stdout", "stderr") if _is_terminal(getattr(sys, name))]
    originals = {name: getattr(sys, name) for name in names}
    replacements: dict[str, Any] = {name: LinesAbove(display, stream) for name, stream in originals.items()}
    changed = []
    for handler in _stream_handlers():
        for name, stream in originals.items():
            if handler.stream is stream:
                handler.setStream(replacements[name])
                changed.append((handler, stream))
                break
    for name, replacement in replacements.items():
        setattr(sys, name, replacement)
    try:
        yield
    finally:
        for name, stream in originals.items():
            if getattr(sys, name) is replacements[name]:
                setattr(sys, name, stream)
        for handler, stream in changed:
            handler.setStream(stream)
        for replacement in replacements.values():
            replacement.finish()


def _is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def _stream_handlers() -> "list[logging.StreamHandler[IO[str]]]":
    loggers = [logging.getLogger(), *logging.Logger.manager.loggerDict.values()]
    handlers = {handler for log in loggers if isinstance(log, logging.Logger) for handler in log.handlers}
    return [handler for handler in handlers if isinstance(handler, logging.StreamHandler)]
