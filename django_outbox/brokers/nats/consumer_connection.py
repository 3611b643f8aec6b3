"""One consuming connection to NATS, as the reader's thread sees it."""

from collections.abc import Collection

from django_outbox.brokers.consumer import Unavailable
from django_outbox.brokers.intake import Intake
from django_outbox.brokers.nats.consumer_options import DurableOptions
from django_outbox.brokers.nats.consumer_session import ConsumingSession
from django_outbox.brokers.nats.loop import LoopThread
from django_outbox.brokers.nats.options import ConnectionOptions


class ConsumingConnection:
    """A handle of a connection, whose session has its own thread.

    Args:
        options: the options of the connection.
        durable: what to read, and how.

    Attributes:
        intake: the messages that were received.
    """

    def __init__(self, options: ConnectionOptions, durable: DurableOptions) -> None:
        self.intake = Intake(durable.max_buffer_bytes, lambda: self._thread.call(self._session.request_more))
        self._session = ConsumingSession(options, durable, self.intake)
        self._thread = LoopThread(self._session.run, f"outbox-nats-{options.alias}")
        self._thread.start()

    def wait_until_ready(self) -> None:
        """Wait until messages can be received.

        Raises:
            Unavailable: that is not possible.
        """
        self._session.is_ready.wait()
        if self.intake.error is not None:
            raise Unavailable(self.intake.error)

    def take_refusal(self) -> str:
        """Return why no stream has stored a dead letter since the last call; blank if there is no such one."""
        refusal, self._session.refusal = self._session.refusal, ""
        return refusal

    def settle(self, tags: Collection[int], rejected: Collection[int]) -> None:
        """Publish rejected messages to the dead letters, and acknowledge all others with these tags."""
        self._thread.call(lambda: self._session.settle(tags, rejected))

    def set_paused(self, paused: bool) -> None:
        """Request no more messages, or request them again."""
        self._thread.call(lambda: self._session.set_paused(paused))

    def count_left(self) -> int:
        """Return the number of messages that are not settled, those that other processes have received included.

        Raises:
            Unavailable: the connection has ended, or JetStream does not respond.
        """
        count = self._thread.ask(self._session.count_left)
        if count is None:
            raise Unavailable(self.intake.error or "the connection to NATS has ended")
        return count

    def close(self) -> None:
        """Send everything that was settled, give the other messages back, and wait for the end of the connection."""
        self._thread.call(self._session.close)
        self._thread.join()
