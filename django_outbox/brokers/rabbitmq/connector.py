"""Open a connection to the first node of a cluster that responds."""

import copy
from collections import deque
from collections.abc import Callable
from functools import partial

import pika
from pika.adapters.utils.selector_ioloop_adapter import SelectorIOServicesAdapter

from django_outbox.brokers.rabbitmq.errors import explain
from django_outbox.brokers.rabbitmq.handover import Status
from django_outbox.brokers.rabbitmq.loop import Loop
from django_outbox.brokers.rabbitmq.nodes import Nodes
from django_outbox.brokers.rabbitmq.options import ConnectionOptions

NO_RESPONSE = "no response in time"


class Connector:
    """Tries one node after another, until `finish` is called. It lives on the thread of the I/O loop.

    Args:
        options: the options of the connection.
        nodes: the order in which to try the nodes; failed ones are reported to it.
        loop: the event loop, for timers.
        wire: pika's adapter for the loop.
        on_open: called with a connection that is open. It may still be lost, and `on_open` called again, until
            `finish` is called.
        on_failed: called with the reasons if no node responds.
        on_lost: called with the error if the connection ends after `finish` was called.

    Attributes:
        status: has the node being tried; the session completes it.
        connection: the connection being opened, or opened.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        nodes: Nodes,
        loop: Loop,
        wire: SelectorIOServicesAdapter,
        *,
        on_open: Callable[[pika.SelectConnection], None],
        on_failed: Callable[[str], None],
        on_lost: Callable[[BaseException], None],
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._loop = loop
        self._wire = wire
        self._on_open = on_open
        self._on_failed = on_failed
        self._on_lost = on_lost
        self._untried_hosts = deque(nodes.order())
        self._failures: list[str] = []
        self._is_finished = False
        self.status = Status(self._untried_hosts[0])
        self.connection: pika.SelectConnection

    def start(self) -> None:
        """Begin to connect."""
        self._loop.call_later(self._options.timeout, self._give_up)
        self._try_next()

    def finish(self) -> None:
        """Try no further nodes, because the connection can be used, or is not needed any more."""
        self._is_finished = True

    def _try_next(self) -> None:
        self.status.host = host = self._untried_hosts.popleft()
        self._has_timed_out = False
        self.connection = pika.SelectConnection(
            copy.copy(host), self._on_open, self._on_open_error, self._on_close, custom_ioloop=self._wire
        )
        self._loop.call_later(host.stack_timeout or self._options.timeout, partial(self._give_up_node, self.connection))

    def _on_open_error(self, _connection: pika.SelectConnection, error: BaseException) -> None:
        self._note_failure(NO_RESPONSE if self._has_timed_out else explain(error))
        if self._untried_hosts and not self._is_finished:
            self._try_next()
        else:
            self._fail()

    def _on_close(self, connection: pika.SelectConnection, error: BaseException) -> None:
        if self._is_finished:
            self._on_lost(error)
        else:
            self._on_open_error(connection, error)

    def _give_up_node(self, connection: pika.SelectConnection) -> None:
        """Try the next node if this one has opened the connection, but no channel in time.

        pika itself gives up a node that does not open the connection.
        """
        if connection is self.connection and connection.is_open and not self._is_finished:
            self._has_timed_out = True
            self._loop.hang_up()

    def _give_up(self) -> None:
        if not self._is_finished:
            self._note_failure(NO_RESPONSE)
            self._fail()

    def _note_failure(self, reason: str) -> None:
        self._nodes.note_failure(self.status.host)
        self._failures.append(f"{self.status.address}: {reason}")

    def _fail(self) -> None:
        self._on_failed(f"cannot connect to RabbitMQ at {'; '.join(self._failures)}")
