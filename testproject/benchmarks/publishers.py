"""A publisher without a broker, to measure the database alone."""

from collections.abc import Sequence

from django_outbox.messages import ACCEPTED, Message, Outcome
from django_outbox.publishers.base import Publisher


class AcceptingPublisher(Publisher):
    """Accepts everything at once."""

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return [ACCEPTED] * len(messages)
