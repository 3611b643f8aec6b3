"""Signals that a test receives."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.dispatch import Signal


@contextmanager
def received(signal: Signal) -> Iterator[list[dict[str, Any]]]:
    """Keep the arguments of a signal each time that it is sent during the block."""
    found: list[dict[str, Any]] = []

    def note(*, signal: object, sender: object, **arguments: Any) -> None:
        found.append(arguments)

    signal.connect(note)
    try:
        yield found
    finally:
        signal.disconnect(note)
