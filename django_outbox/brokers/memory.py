"""A publisher for tests: keeps messages in a list, as `django.core.mail.outbox` keeps e-mails."""

from collections.abc import Sequence

from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import ACCEPTED, Message, Outcome

__all__ = ["MemoryPublisher", "published"]

published: list[Message] = []
"""All messages accepted by any `MemoryPublisher` in this process. Clear it between tests."""

open_blocks: list[None] = []
"""An entry for each open block of `django_outbox.testing.memory_publishers` in this process."""


class MemoryPublisher(Publisher):
    """Accepts every message and appends it to `django_outbox.brokers.memory.published`."""

    keeps_order = True

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        published.extend(messages)
        return [ACCEPTED] * len(messages)
