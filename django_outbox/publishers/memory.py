"""A publisher for tests: messages end up in a list, as e-mails do in `django.core.mail.outbox`."""

from collections.abc import Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.publishers.base import Publisher

published: list[Message] = []
"""Every message that any `MemoryPublisher` of this process accepted; clear it between tests."""


class MemoryPublisher(Publisher):
    """Accepts everything and keeps it in `django_outbox.publishers.memory.published`."""

    keeps_order = True

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        published.extend(messages)
        return [ACCEPTED] * len(messages)
