"""The contract of a publisher: it sends a batch of messages to a broker and reports an outcome for each one."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from django_outbox.messages import Message, Outcome

__all__ = ["BatchRefused", "Publisher"]


class BatchRefused(Exception):
    """Raised by `Publisher.publish` if the broker refuses a batch because of a message that it does not identify.

    Args:
        error: the reason, as text.
        outcomes: one per message of the batch; None for each message that may be the cause.
        permanent: whether that message is rejected once it is found; otherwise it is deferred.
        error_class: the `error_class` of that message's outcome. Defaults to the import path of this exception's class.
    """

    # A subclass may leave out `super().__init__()`.
    outcomes: Sequence[Outcome | None] = ()
    permanent: bool = False
    error_class: str = ""

    def __init__(
        self, error: str, outcomes: Sequence[Outcome | None], *, permanent: bool = False, error_class: str = ""
    ) -> None:
        super().__init__(error)
        self.outcomes = outcomes
        self.permanent = permanent
        self.error_class = error_class


@dataclass(eq=False, repr=False)
class Publisher(abc.ABC):
    """Sends messages to one broker.

    A subclass is named in `OUTBOX["PUBLISHERS"][alias]["BACKEND"]` and receives `OPTIONS` as keyword arguments. The
    constructor validates them and raises `ImproperlyConfigured` with the option and the remedy. It must not connect,
    because the system checks construct every publisher.

    A subclass has its own constructor, or is itself a dataclass, whose fields are the options, and whose
    `__post_init__` validates them.

    `publish` may be called by several threads at once.

    Args:
        alias: the publisher's name in the settings.
    """

    keeps_order: ClassVar[bool] = False
    """Set it to True to promise that the publisher, under any failure, never accepts a message before all earlier
    messages with the same key. Without this promise, one call of `publish` gets at most one message per key."""

    messaging_system: ClassVar[str] = "django_outbox"
    """The kind of broker in traces: `messaging.system` of OpenTelemetry's semantic conventions, such as `kafka`."""
    has_broker: ClassVar[bool] = True
    """Whether it sends to a broker. In tests that use `django_outbox.testing`, a `MemoryPublisher` stands in for it."""
    broker_name: ClassVar[str] = ""
    """The name of the broker in messages and logs, such as "RabbitMQ"; empty if it has none."""
    batch_size: ClassVar[int | None] = None
    """Maximum number of messages in one claim, if the entry in the settings has no `BATCH_SIZE`; None for
    `OUTBOX["BATCH_SIZE"]`."""
    max_payload_bytes: int | None = field(init=False, default=None)
    """Maximum size of a payload in bytes that the broker takes; None if it is not known. A system check compares it
    with `OUTBOX["MAX_PAYLOAD_BYTES"]`."""

    alias: str

    def describe(self) -> str:
        """Return where it publishes to, without passwords. A relay logs this when it starts. It must not connect."""
        return self.broker_name or type(self).__name__

    def prepare(self) -> str:
        """Connect unless already connected. Return the reason if that fails, and otherwise an empty string.

        The relay calls this before it claims messages, so that no database transaction waits for a connection to the
        broker. `run_outbox --check` calls it as well. It must publish nothing, and return within a bounded time.
        """
        return ""

    @abc.abstractmethod
    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        """Send `messages` in their order and return one outcome for each, in the same order.

        It must return within a bounded time, because the caller holds a database transaction open (on SQLite, a lease).
        Do not raise for an outage: return `unanswered` for each message without a response.

        Raises:
            BatchRefused: the broker refused some of the messages without identifying them. The messages without an
                outcome are published again in ever smaller parts; after any other exception, so is the whole batch. A
                message that raises when published alone uses up an attempt and is deferred, provided that another
                message of the batch has an outcome.
        """

    def name_destination(self, message: Message) -> str:
        """Return where a message goes, for traces: `messaging.destination.name` of the semantic conventions."""
        return message.destination

    def close(self) -> None:
        """Release connections and threads. The publisher can be used again afterwards, and then reconnects."""
