"""A live line on a terminal: what is served, the backlog and its age, the rate, failures and outages."""

import os
import threading
from contextlib import ExitStack
from typing import IO

from django_outbox.management.display import Display, everything_above, make_display
from django_outbox.management.figures import LiveReader
from django_outbox.threads import own_connection

REFRESH = 0.5
"""Seconds between two updates of the line."""

PATIENCE = 0.5
"""Seconds to wait at the end for the last update, whose query may hang."""


class ProgressLine:
    """Shows a live line on a terminal while its context is open, and nothing if there is no terminal.

    Everything else that the process writes to the terminal meanwhile, such as its log, appears above the line.

    Args:
        reader: reads the figures that are shown.
        stream: the terminal; None if the process has no such stream.
        refresh: seconds between two updates of the line.
    """

    def __init__(
        self,
        reader: LiveReader,
        stream: IO[str] | None,
        *,
        refresh: float = REFRESH,
    ) -> None:
        self._reader = reader
        self._stream = stream
        self._refresh = refresh
        self._closed = threading.Event()
        self._stack = ExitStack()

    def __enter__(self) -> "ProgressLine":
        stream = self._stream
        # A dumb terminal cannot wipe a line.
        if stream is not None and not stream.closed and stream.isatty() and os.environ.get("TERM") != "dumb":
            display = make_display(stream)
            thread = threading.Thread(target=self._draw, args=(display,), name="outbox-progress", daemon=True)
            self._stack.callback(display.close)
            self._stack.enter_context(everything_above(display))
            self._stack.callback(thread.join, PATIENCE)
            self._stack.callback(self._closed.set)
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _draw(self, display: Display) -> None:
        with own_connection(self._reader.using):
            while not self._closed.wait(self._refresh):
                display.show(self._reader.read())
