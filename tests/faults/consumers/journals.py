"""What a consumer notes: each delivery in a journal, before it acknowledges it.

One line a delivery: `<message id> <key> <number within the key> <delivered again: 0 or 1> <bytes> <monotonic time>`.
Dead letters have a journal of their own: `<message id> <delivered again>`. SIGTERM ends a consumer. SIGUSR1
makes that of RabbitMQ stop reading, and SIGUSR2 read on.
"""

import json
import signal
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TextIO

ACK_PAUSE = 0.1
"""Seconds between two acknowledgements, so that a consumer that is killed has noted messages that come again."""


class Journals:
    """The journals of a consumer in a folder, and what it was told by signals: to end, or to read no more."""

    def __init__(self, arrivals: Path, dead: Path) -> None:
        self.folder = arrivals.parent
        self._arrivals = _open(arrivals)
        self._dead = _open(dead)
        self.stopping = False
        self.reading = True
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, self._on_signal)

    def note(self, message_id: str, key: str, body: bytes, *, again: bool) -> None:
        payload = json.loads(body)
        id = uuid.UUID(message_id).hex
        if key != payload["key"]:
            raise AssertionError(f"{id}: the header has the key {key!r}, the payload {payload['key']!r}")
        self._arrivals.write(f"{id} {key or '-'} {payload['n']} {int(again)} {len(body)} {time.monotonic():.7f}\n")

    def note_dead(self, message_id: str, *, again: bool) -> None:
        self._dead.write(f"{uuid.UUID(message_id).hex} {int(again)}\n")

    def flush(self) -> None:
        """Write what was noted, before it is acknowledged."""
        self._arrivals.flush()
        self._dead.flush()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGTERM:
            self.stopping = True
        else:
            self.reading = number == signal.SIGUSR2


def consume(read: Callable[[str, Journals], None], errors: tuple[type[Exception], ...]) -> None:
    """Read until SIGTERM, and connect again whenever the connection is lost.

    The arguments of the process are the broker's URL and the paths of the two journals.

    Args:
        read: connects to a URL and notes deliveries until it has to stop.
        errors: what `read` raises when the connection is lost.
    """
    url, arrivals, dead = sys.argv[1:]
    journals = Journals(Path(arrivals), Path(dead))
    lost: tuple[type[Exception], ...] = (*errors, OSError)
    while not journals.stopping:
        try:
            read(url, journals)
        except lost as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            time.sleep(0.2)


def _open(path: Path) -> TextIO:
    """Open a journal to add to it, without the part of a line that a killed consumer left and never acknowledged."""
    with path.open("rb+") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
    return path.open("a")
