"""One connection to RabbitMQ, to the first node of a cluster that responds."""

import abc
import copy
import logging
import random
from collections.abc import Callable
from functools import partial

import pika
from pika.adapters.utils.nbio_interface import AbstractStreamProtocol

from django_outbox.brokers.connection_thread import ConnectionThread
from django_outbox.brokers.rabbitmq.errors import explain
from django_outbox.brokers.rabbitmq.options import RabbitMQOptions
from django_outbox.brokers.rabbitmq.wire import Loop, Wire, WireServices
from django_outbox.utils.logs import logger

CLOSE_TIMEOUT = 5.0
"""Seconds that the broker has to close the connection cleanly, before it is cut."""

NO_RESPONSE = "no response in time"


class RabbitMQConnection(ConnectionThread):
    """One connection; its thread handles heartbeats and responses.

    The nodes of a cluster are tried in random order, so that connections spread over them.
    """

    def __init__(self, options: RabbitMQOptions, make_wire: Callable[[AbstractStreamProtocol], Wire]) -> None:
        super().__init__(options.alias, "rabbitmq")
        self._timeout = options.timeout
        self._untried_hosts = random.sample(options.hosts, len(options.hosts))
        self._failures: list[str] = []
        self.host = self._untried_hosts[0]
        self._loop = Loop()
        self._call = self._loop.add_callback_threadsafe
        self._wire = WireServices(self._loop, make_wire)
        self._connection: pika.SelectConnection

    @property
    def address(self) -> str:
        return f"{self.host.host}:{self.host.port}"

    def _run(self) -> None:
        try:
            self._loop.call_later(self._timeout, self._give_up)
            self._try_next()
            self._loop.start()
        except Exception as error:
            logger.exception(
                "%(subject)s: the connection to RabbitMQ failed", event="broker.connection_failed", subject=self._owner
            )
            self._end(f"the connection to RabbitMQ failed: {error!r}")
        finally:
            self._end("the connection to RabbitMQ ended")
            self._loop.hang_up()
            self._loop.close()

    # Connecting

    def _try_next(self) -> None:
        self.host = host = self._untried_hosts.pop(0)
        self._has_timed_out = False
        self._connection = pika.SelectConnection(
            copy.copy(host), self._on_open, self._on_open_error, self._on_close, custom_ioloop=self._wire
        )
        seconds = host.stack_timeout or self._timeout
        self._loop.call_later(seconds, partial(self._give_up_node, self._connection))

    @abc.abstractmethod
    def _on_open(self, connection: pika.SelectConnection) -> None:
        """Open a channel, and call `_note_ready` when it can be used. Until then, another node may be tried."""

    def _note_ready(self, text: str) -> None:
        self._is_ready_or_ended.set()
        self._log(logging.INFO, text, event="broker.connected")

    def _on_open_error(self, _connection: pika.SelectConnection, error: BaseException) -> None:
        reason = explain(error)
        self._note_failure(NO_RESPONSE if self._has_timed_out else reason)
        if self._untried_hosts and not self._is_ready_or_ended.is_set():
            self._try_next()
        else:
            self._fail()

    def _give_up_node(self, connection: pika.SelectConnection) -> None:
        """Move on to the next node if this one accepted the connection but opened no channel in time.

        pika itself gives up a node that does not open the connection.
        """
        if connection is self._connection and connection.is_open and not self._is_ready_or_ended.is_set():
            self._has_timed_out = True
            self._loop.hang_up()

    def _give_up(self) -> None:
        if not self._is_ready_or_ended.is_set():
            self._note_failure(NO_RESPONSE)
            self._fail()

    def _note_failure(self, reason: str) -> None:
        self._failures.append(f"{self.address}: {reason}")

    def _fail(self) -> None:
        self._end(f"cannot connect to RabbitMQ at {'; '.join(self._failures)}")
        self._cut()

    # Ending

    def _on_close(self, connection: pika.SelectConnection, error: BaseException) -> None:
        if not self._is_ready_or_ended.is_set():
            self._on_open_error(connection, error)
            return
        self._end(f"the connection to RabbitMQ at {self.address} {self._explain_loss(error)}")
        self._loop.stop()

    def _explain_loss(self, error: BaseException) -> str:
        return f"was lost: {explain(error)}"

    def _close(self, error: str) -> None:
        """End the connection after everything that was written was sent."""
        self._end(error)
        if not self._connection.is_closing and not self._connection.is_closed:
            self._connection.close()
        self._loop.call_later(CLOSE_TIMEOUT, self._cut)

    def _cut(self) -> None:
        """End the connection at once, so that no unsent data reaches the broker after the messages were sent again."""
        connection = self._connection
        if connection.is_closed:
            self._loop.stop()
            return
        if connection.is_open or connection.is_closing:
            self._loop.hang_up()
        else:
            connection.close()
        self._loop.call_later(1.0, self._loop.stop)

    def _log(self, level: int, text: str, *, event: str) -> None:
        logger.log(level, "%(subject)s: %(reason)s", event=event, subject=self._owner, reason=text)
