"""Lines that a command prints, whatever happened to its output."""

import os
from contextlib import suppress

from django.core.management.base import OutputWrapper


def print_line(stream: OutputWrapper, text: str) -> None:
    """Write a line, unless the stream is closed or has lost its reader."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError, AttributeError):
        # Python would try again when it exits, and exit with 120.
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
