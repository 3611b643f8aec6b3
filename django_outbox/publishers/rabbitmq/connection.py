"""One connection to RabbitMQ, as the threads that publish see it."""

import threading
import time

import pika

from django_outbox.publishers.rabbitmq.batch import Batch
from django_outbox.publishers.rabbitmq.exchange_check import ExchangeCheck
from django_outbox.publishers.rabbitmq.handover import Intake
from django_outbox.publishers.rabbitmq.loop import Loop
from django_outbox.publishers.rabbitmq.nodes import Nodes
from django_outbox.publishers.rabbitmq.options import ConnectionOptions
from django_outbox.publishers.rabbitmq.session import Session


class RabbitMQConnection:
    """A thread-safe handle of a connection: any thread may use it.

    It begins to connect when it is constructed. Its session has its own thread, so that confirms, heartbeats and
    `connection.blocked` are read regardless of what the callers do. A connection that has ended is not reopened;
    construct a new one.

    Args:
        options: the options of the connection.
        nodes: the order in which to try the nodes; failed ones are reported to it.
    """

    def __init__(self, options: ConnectionOptions, nodes: Nodes) -> None:
        self._intake = Intake()
        self._loop = Loop()
        self._session = Session(options, nodes, self._intake, self._loop)
        self._status = self._session.status
        name = f"outbox-rabbitmq-{options.publisher_alias}"
        self._thread = threading.Thread(target=self._session.run, name=name, daemon=True)
        self._thread.start()

    @property
    def accepts_batches(self) -> bool:
        """Whether it is neither retired nor ended."""
        return not self._intake.is_closed

    @property
    def is_alive(self) -> bool:
        """Whether its thread is running."""
        return self._thread.is_alive()

    @property
    def host(self) -> pika.URLParameters:
        """The node that it is connected to, or is trying to connect to."""
        return self._status.host

    @property
    def address(self) -> str:
        """Host and port of that node."""
        return self._status.address

    @property
    def seconds_without_confirm(self) -> float:
        """Seconds since the broker last confirmed or nacked a message over it, or accepted the connection."""
        return time.monotonic() - self._status.confirmed_at

    def wait_until_ready(self) -> str:
        """Wait until it is connected or has failed. Return the reason if it failed, and otherwise an empty string."""
        self._status.is_settled.wait()
        return self._status.error

    def check_exchange(self, exchange: str, seconds: float) -> str:
        """Return what is wrong with an exchange, with the remedy; an empty string if it exists.

        Args:
            exchange: its name.
            seconds: the time in which the broker must respond.
        """
        check = ExchangeCheck(exchange)
        self._loop.add_callback_threadsafe(lambda: self._session.check_exchange(check))
        return check.wait(seconds)

    def submit(self, batch: Batch) -> bool:
        """Accept a batch, to be sent as soon as possible; False if the connection is retired or has ended."""
        if not self._intake.put(batch):
            return False
        self._loop.add_callback_threadsafe(self._session.send)
        return True

    def retire(self) -> None:
        """Accept no more batches, and close the connection when those in hand are complete."""
        self._intake.close()
        self._loop.add_callback_threadsafe(self._session.close_if_retired)

    def close(self) -> None:
        """Close the connection and wait for its end; messages without an outcome are unanswered."""
        self._loop.add_callback_threadsafe(self._session.close)
        self._thread.join()
