"""The publisher of tests, without a broker."""

from collections.abc import Sequence
from typing import Any

from django_outbox.brokers import memory
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
