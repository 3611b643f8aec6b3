"""One connection to RabbitMQ, as the threads that publish see it."""

import threading
from collections.abc import Callable
from dataclasses import replace

import pika

from django_outbox.brokers.rabbitmq.batch import Batch
from django_outbox.brokers.rabbitmq.exchange_check import ExchangeCheck
from django_outbox.brokers.rabbitmq.handover import Intake
from django_outbox.brokers.rabbitmq.loop import Loop
from django_outbox.brokers.rabbitmq.nodes import Nodes
from django_outbox.brokers.rabbitmq.options import ConnectionOptions
from django_outbox.brokers.rabbitmq.session import Session


class RabbitMQConnection:
    """A thread-safe handle of a connection: any thread may use it.

    It begins to connect when it is constructed. Its session has its own thread, so that confirms, heartbeats and
    `connection.blocked` are read regardless of what the callers do. A connection that has ended is not reopened;
    construct a new one.

    Args:
        options: the options of the connection.
        nodes: the order in which to try the nodes; failed ones are reported to it.
        is_for_trials: whether its messages try destinations, so that messages without a confirm are expected.
        on_ready: called on the connection's thread when it can be used.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        nodes: Nodes,
        *,
        is_for_trials: bool = False,
        on_ready: Callable[[], object] = lambda: None,
    ) -> None:
        self._options = options
        self._intake = Intake()
        self._loop = Loop()
        self._probe: RabbitMQConnection | None = None
        probe = None if is_for_trials else self._connect_to_probe
        self._session = Session(options, nodes, self._intake, self._loop, probe=probe, on_ready=on_ready)
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
        if self._probe is not None:
            self._probe.close()
        self._loop.add_callback_threadsafe(self._session.close)
        self._thread.join()

    def _connect_to_probe(self) -> None:
        """Connect to the node again: if it responds, it is not the node that keeps messages from being confirmed."""
        options = replace(self._options, hosts=(self.host,))
        probe = RabbitMQConnection(options, Nodes(options.hosts), is_for_trials=True, on_ready=self._on_probe_ready)
        self._probe = probe

    def _on_probe_ready(self) -> None:
        self._loop.add_callback_threadsafe(self._session.abandon_stalled)
        if self._probe is not None:
            self._probe.retire()
