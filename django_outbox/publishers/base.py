"""The contract of a publisher: what hands a batch of messages to a broker and answers for each one."""

import abc
from collections.abc import Sequence
from typing import Any

from django_outbox.messages import Message, Outcome


class Publisher(abc.ABC):
    """Hands messages to one broker.

    A subclass is named in `OUTBOX["PUBLISHERS"][alias]["BACKEND"]` and gets `OPTIONS` as keyword arguments. The
    constructor checks them and raises `ImproperlyConfigured`, naming the option and the remedy; it must not connect,
    because the system checks construct every publisher.

    `publish` may be called by several threads at once.
    """

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias

    @abc.abstractmethod
    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Hand over `messages` in their order and return one outcome for each, in the same order.

        Must return within a bounded time: the caller holds a database transaction open. An exception means that no
        message was answered for: the whole batch goes back and nothing is counted against it.
        """

    def close(self) -> None:
        """Release connections and threads. The publisher may be used again afterwards, and then connects anew."""
