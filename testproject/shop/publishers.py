"""A console publisher that routes messages like a broker."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from django_outbox.brokers.console import ConsolePublisher
from django_outbox.messages import Message, Outcome, rejected


class RoutedConsolePublisher(ConsolePublisher):
    """Print messages of some types and reject all others, as RabbitMQ does if no queue is bound for them.

    Args:
        types: patterns of the accepted types, for example `order.*`.
    """

    def __init__(self, alias: str, *, types: Sequence[str]) -> None:
        super().__init__(alias)
        self._types = tuple(types)

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        routed = [message for message in messages if self._accepts(message)]
        outcomes = iter(super().publish(routed))
        return [
            next(outcomes) if self._accepts(message) else rejected(f"unroutable: nothing is bound for {message.type!r}")
            for message in messages
        ]

    def _accepts(self, message: Message) -> bool:
        return any(fnmatchcase(message.type, pattern) for pattern in self._types)
