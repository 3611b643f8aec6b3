"""One connection to NATS, as the threads that publish see it."""

from django_outbox.brokers.nats.batch import Batch
from django_outbox.brokers.nats.loop import LoopThread
from django_outbox.brokers.nats.options import ConnectionOptions
from django_outbox.brokers.nats.session import Session


class NatsConnection:
    """A thread-safe handle of a connection: any thread may use it.

    It begins to connect when it is constructed. Its session has its own thread and event loop, so that responses are
    read regardless of what the callers do. A connection that has ended is not reopened; construct a new one.

    Args:
        options: the options of the connection.
        max_in_flight: maximum number of messages without a response.
    """

    def __init__(self, options: ConnectionOptions, max_in_flight: int) -> None:
        self._session = Session(options, max_in_flight)
        self._thread = LoopThread(self._session.run, f"outbox-nats-{options.alias}")
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether it has not ended."""
        return not self._session.error

    def wait_until_ready(self) -> str:
        """Wait until it is connected or has failed. Return the reason if it failed, and otherwise an empty string."""
        self._session.is_settled.wait()
        return self._session.error

    def submit(self, batch: Batch) -> bool:
        """Accept a batch, to be sent as soon as possible; False if the connection has ended."""
        return self._thread.call(lambda: self._session.submit(batch))

    def check(self, *, stream: str, subject: str) -> str:
        """Return what keeps messages from being stored, with the remedy; an empty string if nothing is known.

        Args:
            stream: the stream that has to exist; blank for any.
            subject: the subject of all messages; blank if they have different ones.
        """
        problem = self._thread.ask(lambda: self._session.check(stream, subject))
        return self._session.error if problem is None else problem

    def close(self) -> None:
        """Close the connection and wait for its end; messages without an outcome are unanswered."""
        self._thread.call(self._session.close)
        self._thread.join()
