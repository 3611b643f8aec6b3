"""Publishers without a broker."""

import io
import json
from collections.abc import Sequence
from typing import Any

from django_outbox.brokers import memory
from django_outbox.brokers.console import ConsolePublisher
from django_outbox.brokers.memory import MemoryPublisher
from tests.publishers.subjects.base import Received, Subject


class MemorySubject(Subject):
    def __init__(self) -> None:
        super().__init__()
        memory.published.clear()

    def make(self, **options: Any) -> MemoryPublisher:
        return MemoryPublisher("default", **options)

    def received(self) -> Sequence[Received]:
        found = [Received(each.message_id, each.payload, each.type, each.key) for each in memory.published]
        memory.published.clear()
        return found

    def close(self) -> None:
        super().close()
        memory.published.clear()


class ConsoleSubject(Subject):
    def __init__(self) -> None:
        super().__init__()
        self._stream = io.StringIO()

    def make(self, **options: Any) -> ConsolePublisher:
        return ConsolePublisher("default", stream=self._stream, **options)

    def received(self) -> Sequence[Received]:
        lines = self._stream.getvalue().splitlines()
        self._stream.seek(0)
        self._stream.truncate()
        return [_read_line(line) for line in lines]


def _read_line(line: str) -> Received:
    # The payload is printed as it is.
    start, _, payload = line.partition(', "payload": ')
    fields = json.loads(f"{start}}}")
    return Received(fields["message_id"], payload[:-1].encode(), fields["type"], fields.get("key", ""))
