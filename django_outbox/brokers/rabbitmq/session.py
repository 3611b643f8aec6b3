"""The life of one connection to RabbitMQ, on the thread of its I/O loop."""

import logging
from collections.abc import Callable

import pika
from pika.exceptions import ConnectionBlockedTimeout
from pika.frame import Method
from pika.spec import Connection as ConnectionMethods

from django_outbox.brokers.rabbitmq.channel import BatchChannel
from django_outbox.brokers.rabbitmq.connector import Connector
from django_outbox.brokers.rabbitmq.errors import (
    blames_message,
    explain,
    explain_channel,
    lacks_permission,
    max_message_size,
)
from django_outbox.brokers.rabbitmq.exchange_check import ExchangeCheck
from django_outbox.brokers.rabbitmq.handover import Intake
from django_outbox.brokers.rabbitmq.loop import Loop
from django_outbox.brokers.rabbitmq.nodes import Nodes
from django_outbox.brokers.rabbitmq.options import ConnectionOptions
from django_outbox.brokers.rabbitmq.pool import ChannelPool
from django_outbox.brokers.rabbitmq.wire import ConfirmWire, WireServices
from django_outbox.logs import logger
from django_outbox.messages import unanswered

MAX_CLOSING = 100
"""Maximum number of abandoned channels that the broker has not closed; beyond it, another connection takes over."""

MAX_MESSAGES_PER_TURN = 1000
"""Number of messages that a channel sends before the loop handles confirms and heartbeats."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the broker has to close the connection cleanly, before it is cut."""


class Session:
    """Connects, sends batches and ends; a new connection needs a new session.

    A session lives on the thread that calls `run`: every method must be called on that thread. Other threads put
    batches into the intake, read the status, and pass the session's methods to `Loop.add_callback_threadsafe`.

    Batches are sent side by side, each over its own channel, so that a channel that the broker closes because of a
    message takes no other batch with it.

    Args:
        options: the options of the connection.
        nodes: the order in which to try the nodes; failed ones are reported to it.
        intake: the batches to send.
        loop: the event loop, not yet running.
        probe: called if the broker confirms nothing for a while, to find out whether it responds to another connection.
            If it does, call `abandon_stalled`. Without `probe`, stalled channels are abandoned at once.
        on_ready: called when the connection can be used.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        nodes: Nodes,
        intake: Intake,
        loop: Loop,
        *,
        probe: Callable[[], object] | None,
        on_ready: Callable[[], object],
    ) -> None:
        self._options = options
        self._nodes = nodes
        self._intake = intake
        self._loop = loop
        self._wire = WireServices(loop, lambda connection: ConfirmWire(connection, self._on_confirm))
        self._pool = ChannelPool(self._make_channel)
        self._connector = Connector(
            options,
            nodes,
            loop,
            self._wire,
            on_open=self._on_open,
            on_failed=self._on_failed,
            on_lost=self._on_lost,
        )
        self._is_ready = False
        self._has_ended = False
        self._blocked_reason: str | None = None
        self._is_watching = False
        self._probe = probe
        self._is_probing = False
        self._tell_ready = on_ready
        self.status = self._connector.status

    def run(self) -> None:
        """Connect, and serve the connection until it ends."""
        try:
            self._connector.start()
            self._loop.start()
        except Exception as error:
            logger.exception("Publisher %r: the connection to RabbitMQ failed", self._options.publisher_alias)
            self._end(f"the connection to RabbitMQ failed: {error!r}")
        finally:
            self._end("the connection to RabbitMQ ended")
            self._loop.hang_up()
            self._loop.close()

    # Connecting

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._pool.attach(connection)
        self._pool.open_channel()

    def _on_failed(self, reasons: str) -> None:
        self._end(reasons)
        self._cut()

    # Channels

    def _make_channel(self, connection: pika.SelectConnection) -> BatchChannel:
        return BatchChannel(
            connection,
            self._options.channel,
            write=self._wire.write,
            on_free=self._on_channel_free,
            on_closed=self._on_channel_closed,
        )

    def _on_channel_free(self, channel: BatchChannel) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._connector.finish()
            self.status.is_settled.set()
            self._log(logging.INFO, f"connected to RabbitMQ at {self.status.address}")
            self._tell_ready()
        if channel.nacked:
            # RabbitMQ 3 confirms nothing more for a quorum queue over a channel on which that queue refused a message.
            self._abandon(channel)
        if self._intake:
            self._loop.add_callback_threadsafe(self.send)
        self.close_if_retired()

    def _on_channel_closed(self, channel: BatchChannel, error: Exception) -> None:
        if channel not in self._pool.channels:
            self._pool.closing -= 1
            return
        # When the connection ends, pika closes its channels too. That is not about their batches.
        if self._has_ended or not self._connector.connection.is_open:
            return
        batch = channel.batch
        if batch is None or not blames_message(error):
            self._end(f"RabbitMQ closed the channel: {explain_channel(error)}")
            self.close()
            return
        self._pool.channels.remove(channel)
        limit = max_message_size(error)
        if limit is not None and batch.reject_larger(limit):
            if batch.missing:
                batch.sent = 0
                self._intake.put_back(batch)
        else:
            text = f"RabbitMQ refused the message: {explain_channel(error)}"
            batch.refuse(text, error, permanent=not lacks_permission(error))
        self.send()

    def _abandon(self, channel: BatchChannel) -> None:
        self._pool.abandon(channel)
        # The broker closes a stalled channel only when the channel moves again.
        if self._pool.closing > MAX_CLOSING:
            self._intake.close()

    # Sending

    def send(self) -> None:
        """Send the batches in the intake, and the rest of those in flight, a turn at a time."""
        if not self._is_ready or self._has_ended or self._blocked_reason is not None:
            return
        for channel in self._pool.channels:
            if self._intake and channel.is_free:
                channel.take(self._intake.pop())
        room = self._pool.room
        if self._intake and not self._pool.channels and room <= 0:
            self._end(f"RabbitMQ at {self.status.address} does not close channels")
            self._cut()
            return
        for _ in range(min(len(self._intake) - self._pool.opening, room)):
            self._pool.open_channel()
        unfinished = [channel.send(MAX_MESSAGES_PER_TURN) for channel in [*self._pool.channels]]
        if any(unfinished):
            self._loop.add_callback_threadsafe(self.send)
        self._watch()

    def _on_confirm(self, number: int, ack: bool, tag: int, multiple: bool) -> None:
        for channel in self._pool.channels:
            if channel.number == number:
                channel.confirm(ack, tag, multiple)
                return

    # Waiting for responses

    def _watch(self) -> None:
        """Start the timer that detects missing responses; one timer serves all batches."""
        if not self._is_watching and not self._has_ended and not self._pool.is_idle:
            self._is_watching = True
            seconds = self._pool.seconds_waiting
            stall_timeout = self._options.stall_timeout
            limit = stall_timeout if seconds < stall_timeout else self._options.timeout
            self._loop.call_later(max(0.0, limit - seconds), self._check_responses)

    def _check_responses(self) -> None:
        self._is_watching = False
        timeout = self._options.timeout
        if self._blocked_reason is not None:
            # pika ends a connection that stays blocked; a blocked broker owes no response.
            self._pool.restart_clocks()
        elif self._pool.seconds_waiting >= timeout:
            self._nodes.note_failure(self.status.host)
            self._end(f"RabbitMQ at {self.status.address} has not responded for {timeout:g} s")
            self._cut()
        elif self._pool.seconds_waiting >= self._options.stall_timeout:
            if self._probe is None:
                self.abandon_stalled()
            elif not self._is_probing:
                self._is_probing = True
                self._probe()
        self._watch()

    def abandon_stalled(self) -> None:
        """Give back the batches that the broker does not confirm, although it responds, and accept no more.

        A queue without quorum leaves messages unconfirmed, and may stall the whole channel at its first message. After
        some 400 messages behind it, RabbitMQ reads nothing more from the connection, so another one takes over.
        """
        self._is_probing = False
        if self._has_ended:
            return
        stalled = [channel for channel in self._pool.channels if channel.seconds_waiting >= self._options.stall_timeout]
        if not stalled:
            return
        self._intake.close()
        unsent = self._intake.clear()
        for channel in stalled:
            if channel.batch is not None:
                unsent.append(channel.batch)
            self._pool.abandon(channel)
        for batch in unsent:
            batch.stall()
        if not self._pool.batches:
            self._end(f"RabbitMQ at {self.status.address} confirms nothing over the connection")
            self._cut()

    def _on_blocked(self, _connection: object, frame: "Method[ConnectionMethods.Blocked]") -> None:
        self._blocked_reason = str(frame.method.reason)
        self._log(logging.WARNING, f"RabbitMQ blocks the connection: {self._blocked_reason}")

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self._blocked_reason = None
        self._log(logging.INFO, "RabbitMQ no longer blocks the connection")
        self._pool.restart_clocks()
        self.send()

    # Checking

    def check_exchange(self, check: ExchangeCheck) -> None:
        """Ask the broker for an exchange."""
        if self._connector.connection.is_open and not self._has_ended:
            check.begin(self._connector.connection)
        else:
            check.end(self.status.error or "the connection to RabbitMQ ended")

    # Ending

    def close_if_retired(self) -> None:
        """Close the connection if the intake is closed and every batch is complete."""
        if self._intake.is_closed and not self._has_ended and not self._intake and not self._pool.batches:
            self.close()

    def close(self) -> None:
        """Close the connection; messages without an outcome are unanswered."""
        self._end("the publisher was closed")
        connection = self._connector.connection
        if self._probe is None:
            # RabbitMQ would wait for the channels that sick queues have stalled.
            self._cut()
            return
        if not connection.is_closing and not connection.is_closed:
            connection.close()
        self._loop.call_later(CLOSE_TIMEOUT, self._cut)

    def _on_lost(self, error: BaseException) -> None:
        if not self._has_ended:
            self._nodes.note_failure(self.status.host)
        if isinstance(error, ConnectionBlockedTimeout):
            reason = f"was blocked for {self._options.blocked_timeout:g} s: {self._blocked_reason}"
        else:
            reason = f"was lost: {explain(error)}"
        self._end(f"the connection to RabbitMQ at {self.status.address} {reason}")
        self._loop.stop()

    def _end(self, error: str) -> None:
        """Accept no more batches, and leave every message without an outcome unanswered. Only the first call counts."""
        if self._has_ended:
            return
        self._has_ended = True
        self._connector.finish()
        self._intake.close()
        self.status.error = error
        self.status.is_settled.set()
        batches = [*self._pool.batches, *self._intake.clear()]
        self._pool.channels.clear()
        # The relay reports an outage, once; an attempt to connect may be one of hundreds.
        self._log(logging.DEBUG, error)
        for batch in batches:
            batch.set_missing(unanswered(error))

    def _cut(self) -> None:
        """End the connection at once: unsent data must not reach the broker after the messages were sent again."""
        connection = self._connector.connection
        if connection.is_closed:
            self._loop.stop()
            return
        if connection.is_open or connection.is_closing:
            self._loop.hang_up()
        else:
            connection.close()
        self._loop.call_later(1.0, self._loop.stop)

    def _log(self, level: int, text: str) -> None:
        logger.log(level, "Publisher %r: %s", self._options.publisher_alias, text)
