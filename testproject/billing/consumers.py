"""A consumer for development: a file stands for the broker."""

import json
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO, Any

from django_outbox.brokers import Consumer, Incoming, Unavailable


class FileConsumer(Consumer):
    """Reads the lines of a console publisher from a file.

    It does not remember its position: whenever it is opened, it delivers all lines again, and the inbox recognizes the
    messages that it has stored.

    Args:
        alias: the consumer's name in the settings.
        path: the file.
        options: the options of every consumer.
    """

    def __init__(self, alias: str, *, path: str, **options: Any) -> None:
        super().__init__(alias, **options)
        self._path = Path(path)
        self._file: IO[bytes] | None = None

    @property
    def source(self) -> str:
        return f"file {self._path}"

    def open(self) -> None:
        try:
            self._file = self._path.open("rb")
        except OSError as error:
            raise Unavailable(f"{self._path} cannot be read: {error.strerror}") from error

    def receive(self, seconds: float) -> list[Incoming]:
        found: list[Incoming] = []
        while len(found) < self.batch_size and (line := self._next_line()):
            found.append(_read(line, tag=self._opened.tell()))
        if not found:
            time.sleep(seconds)
        return found

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        """Do nothing: the file keeps its lines."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _opened(self) -> IO[bytes]:
        if self._file is None:
            raise Unavailable(f"{self._path} is not open")
        return self._file

    def _next_line(self) -> bytes:
        """Return the next line; empty if there is none, or if it is still being written."""
        position = self._opened.tell()
        line = self._opened.readline()
        if line.endswith(b"\n"):
            return line
        self._opened.seek(position)
        return b""


def _read(line: bytes, tag: int) -> Incoming:
    try:
        message = json.loads(line)
        return Incoming(
            tag,
            json.dumps(message["payload"]).encode(),
            message_id=message["message_id"],
            type=message["type"],
            topic=message["destination"],
            key=message["key"],
            headers=message["headers"],
        )
    except (ValueError, KeyError, TypeError) as error:
        return Incoming(tag, line, problem=f"the line is not one of a console publisher: {error!r}")
