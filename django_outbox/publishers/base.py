"""The contract of a publisher: what hands a batch of messages to a broker and answers for each one."""

import abc
from collections.abc import Sequence
from typing import Any, ClassVar

from django_outbox.messages import Message, Outcome


class BatchRefused(Exception):
    """Raised by `Publisher.publish` where the broker refuses a batch because of a message that it does not name.

    Args:
        error: the reason in words.
        outcomes: one for each message of the batch, None for those of which one or more are to blame.
        permanent: whether the message to blame, once found, is rejected; otherwise it is tried again later.
        error_class: the outcome's `error_class` of that message, by default the name of the exception.
    """

    def __init__(
        self, error: str, outcomes: Sequence[Outcome | None], *, permanent: bool = False, error_class: str = ""
    ) -> None:
        super().__init__(error)
        self.outcomes = outcomes
        self.permanent = permanent
        self.error_class = error_class


class Publisher(abc.ABC):
    """Hands messages to one broker.

    A subclass is named in `OUTBOX["PUBLISHERS"][alias]["BACKEND"]` and gets `OPTIONS` as keyword arguments. The
    constructor checks them and raises `ImproperlyConfigured`, naming the option and the remedy; it must not connect,
    because the system checks construct every publisher.

    `publish` may be called by several threads at once.
    """

    keeps_order: ClassVar[bool] = False
    """Whether it promises that, under any failure, it accepts no message of a batch without all earlier ones of the
    same key. Without the promise only one message of a key is handed over at a time."""

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias

    @abc.abstractmethod
    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Hand over `messages` in their order and return one outcome for each, in the same order.

        Must return within a bounded time: the caller holds a database transaction open. An outage is no exception: it
        leaves messages unanswered.

        Raises:
            BatchRefused: some of the messages are refused, and it is not known which. What it leaves open is published
                again in ever smaller parts, and so is the whole batch after any other exception. A message that raises
                alone, while another of the batch is answered for, is counted an attempt against, and tried again later.
        """

    def close(self) -> None:
        """Release connections and threads. The publisher may be used again afterwards, and then connects anew."""
