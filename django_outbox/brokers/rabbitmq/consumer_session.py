"""The life of one consuming connection to RabbitMQ, on the thread of its I/O loop."""

import math
import threading
import time
from collections.abc import Collection
from functools import partial
from typing import Any

import pika
from pika.channel import Channel

from django_outbox.brokers.consumer import Incoming, Unavailable
from django_outbox.brokers.intake import Intake
from django_outbox.brokers.rabbitmq.connector import Connector
from django_outbox.brokers.rabbitmq.consumer_loop import ThrottledLoop
from django_outbox.brokers.rabbitmq.consumer_options import QueueOptions
from django_outbox.brokers.rabbitmq.consumer_wire import Delivery, DeliveryWire
from django_outbox.brokers.rabbitmq.decoding import read_delivery
from django_outbox.brokers.rabbitmq.errors import explain, explain_channel
from django_outbox.brokers.rabbitmq.nodes import Nodes
from django_outbox.brokers.rabbitmq.options import ConnectionOptions
from django_outbox.brokers.rabbitmq.window import Window
from django_outbox.brokers.rabbitmq.wire import WireServices
from django_outbox.error_text import one_line
from django_outbox.logs import logger

CLOSE_TIMEOUT = 5.0
"""Seconds that the broker has to close the connection cleanly, before it is cut."""

CHANNEL_INTERVAL = 0.01
"""Seconds until it is seen again whether a channel is closed."""

MAX_HOLD_TIME = 600.0
"""Seconds for which messages are held while the consumer pauses. By default RabbitMQ closes a channel with a message
that was not acknowledged for 30 minutes (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout)."""

MANY_RETURNS = 10
"""Number of returns of a message to its queue from which on a warning is logged."""

WARNING_INTERVAL = 60.0
"""Seconds between two such warnings."""

READ_INTERVAL = 1.0
"""Seconds after which a connection that reads nothing, because the reader is behind, reads a little: pika considers a
connection dead if it receives nothing for a while, heartbeats included."""


class Session:
    """Connects, consumes a queue and ends; a new connection needs a new session.

    The public methods may be called by any thread; methods with an underscore run on the connection's own thread, so
    that heartbeats are sent however long the reader takes.

    Args:
        options: how to connect.
        queue: what to read, and how.
        nodes: the order in which to try the nodes; failed ones are reported to it.
        max_messages: number of messages that will be settled; None for no limit.
    """

    def __init__(
        self, options: ConnectionOptions, queue: QueueOptions, nodes: Nodes, max_messages: int | None = None
    ) -> None:
        self._options = options
        self._queue = queue
        self._nodes = nodes
        self._window = Window(queue.max_prefetch, max_messages)
        self._loop = ThrottledLoop()
        self.intake = Intake(queue.max_buffer_bytes, partial(self._call, self._loop.resume_reading))
        self._connector = Connector(
            options,
            nodes,
            self._loop,
            WireServices(self._loop, lambda connection: DeliveryWire(connection, self._on_delivery)),
            on_open=self._on_open,
            on_failed=self._on_failed,
            on_lost=self._on_lost,
        )
        self._channel: Channel | None = None
        self._consumer_tag = ""
        self._is_reading = False
        self._warned_at = -math.inf
        self._has_given_back = False
        self._is_reopening = False
        self._pausing: Any = None
        self._is_ready = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"outbox-rabbitmq-{options.publisher_alias}", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """Host and port of the node."""
        return self._connector.status.address

    def wait_until_ready(self) -> None:
        """Wait until the queue was found.

        Raises:
            Unavailable: that is not possible.
        """
        self._is_ready.wait()
        if self.intake.error is not None:
            raise Unavailable(self.intake.error)

    @property
    def has_given_back(self) -> bool:
        """Whether messages went back to the queue because the consumer paused for long."""
        return self._has_given_back

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        """Return the next messages; wait for the first one at most `seconds`. The first call begins to consume.

        Raises:
            Unavailable: the connection has ended. Its messages cannot be settled any more.
        """
        if not self._is_reading:
            self._call(self._begin)
        messages = self.intake.take(max_messages, max_bytes, seconds)
        if not messages:
            self._call(self._settle)
        return messages

    def settle(self, accepted: int, rejected: Collection[int]) -> None:
        """Reject messages with these tags, and accept all others up to the tag `accepted`, unless that is 0."""
        self._call(partial(self._on_stored, accepted, sorted(rejected)))

    def pause(self) -> None:
        """Hand over nothing. The broker soon delivers no more, because what it has delivered is not acknowledged."""
        self.intake.hold()
        self._call(self._pause)

    def resume(self) -> None:
        """Hand over what was delivered, and let the broker deliver again."""
        self._call(self._resume)

    def count_ready(self) -> int:
        """Return the number of messages in the queue that were not delivered.

        Raises:
            Unavailable: the connection has ended, or the broker does not respond.
        """
        found: list[int] = []
        answered = threading.Event()

        def ask() -> None:
            if self._channel is not None and self._channel.is_open:
                declare(self._channel)
            elif self._connector.connection.is_open:
                self._connector.connection.channel(on_open_callback=declare)

        def declare(channel: Channel) -> None:
            if channel is not self._channel:
                channel.add_on_close_callback(refused)
            channel.queue_declare(self._queue.name, passive=True, callback=note)
            if channel is not self._channel:
                channel.close()

        def refused(_channel: Channel, error: Exception) -> None:
            if not answered.is_set():
                self._end(f"RabbitMQ closed the channel: {explain_queue(error)}")
                self._close()

        def note(frame: Any) -> None:
            found.append(frame.method.message_count)
            answered.set()

        self._call(ask)
        while not answered.wait(0.05):
            if self.intake.error is not None:
                raise Unavailable(self.intake.error)
            if not self._thread.is_alive():
                raise Unavailable("the connection to RabbitMQ ended")
        return found[0]

    def close(self) -> None:
        """Close the connection after everything that was settled was sent, and wait for its end."""
        self._call(self._close)
        self._thread.join(2 * CLOSE_TIMEOUT)

    def _call(self, work: Any) -> None:
        self._loop.add_callback_threadsafe(work)

    def _run(self) -> None:
        try:
            self._connector.start()
            self._loop.start()
        except Exception as error:
            logger.exception("Consumer %r: the connection to RabbitMQ failed", self._options.publisher_alias)
            self._end(f"the connection to RabbitMQ failed: {error!r}")
        finally:
            self._end("the connection to RabbitMQ ended")
            self._loop.hang_up()
            self._loop.close()

    # Connecting

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_failed(self, reasons: str) -> None:
        self._end(reasons)
        self._cut()

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        self._has_given_back = self._is_reopening = False
        self._window.restart()
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)
        channel.queue_declare(self._queue.name, passive=True, callback=self._on_found)

    def _on_found(self, _frame: object) -> None:
        if not self._is_ready.is_set():
            self._connector.finish()
            logger.info(
                "Consumer %r: reads queue %r at %s", self._options.publisher_alias, self._queue.name, self.address
            )
            self._is_ready.set()
        if self._is_reading:
            self._begin_window()

    def _begin(self) -> None:
        """Begin to consume. While the consumer pauses, nothing is delivered that would have to be returned."""
        if self._pausing is None and not self._is_reading:
            self._is_reading = True
            self._begin_window()

    def _begin_window(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open and self._window.size:
            channel.basic_qos(prefetch_count=self._window.size, callback=partial(self._consume, channel))

    def _consume(self, channel: Channel, _frame: object) -> None:
        if channel.is_open:
            # The wire takes the deliveries.
            self._consumer_tag = channel.basic_consume(self._queue.name, _ignore)

    # Reading

    def _on_delivery(self, delivery: Delivery) -> None:
        if self._has_given_back:
            # It comes again, because the channel is being closed.
            return
        self._window.note_delivery(delivery.tag)
        incoming = read_delivery(delivery, key_header=self._queue.key_header)
        if incoming.returns >= MANY_RETURNS:
            self._warn_of_limit(incoming)
        if not self.intake.put(incoming):
            self._loop.pause_reading(READ_INTERVAL)

    def _warn_of_limit(self, incoming: Incoming) -> None:
        if time.monotonic() - self._warned_at < WARNING_INTERVAL:
            return
        self._warned_at = time.monotonic()
        logger.warning(
            "Consumer %r: message %s of queue %r has been returned to the queue %d times. At its delivery limit (20 by "
            "default in RabbitMQ 4), the queue drops it, or moves it to its dead-letter exchange. Find out in the log "
            "why readers end before they store it; until then, raise delivery-limit with a policy.",
            self._options.publisher_alias,
            one_line(incoming.message_id, 100) or "without an ID",
            self._queue.name,
            incoming.returns,
        )

    def _on_stored(self, accepted: int, rejected: list[int]) -> None:
        self._window.note_stored(accepted, rejected)
        if self._window.is_refilled:
            self._settle()
        elif self._window.is_complete and self._channel is not None and self._channel.is_open:
            self._channel.basic_cancel(self._consumer_tag, lambda _frame: self._end_window())

    def _end_window(self) -> None:
        self._settle()
        if self.intake.error is None:
            self._window.grow()
            self._begin_window()

    def _settle(self) -> None:
        channel = self._channel
        if channel is None or not channel.is_open:
            return
        accepted, rejected = self._window.settle()
        # First, because the acknowledgement covers all tags up to its own.
        for tag in rejected:
            channel.basic_reject(tag, requeue=False)
        if accepted:
            channel.basic_ack(accepted, multiple=True)

    def _pause(self) -> None:
        # Not by `basic.cancel`: see `_keep_order`.
        if self._pausing is None:
            self._pausing = self._loop.call_later(MAX_HOLD_TIME, self._give_back)

    def _resume(self) -> None:
        if self._pausing is not None:
            self._loop.remove_timeout(self._pausing)
            self._pausing = None
        # On this thread, so that nothing of a closed channel is handed over.
        self.intake.release()
        if self._has_given_back and not self._is_reopening:
            self._is_reopening = True
            self._reopen()

    def _reopen(self) -> None:
        if self._channel is not None and self._channel.is_closing:
            self._loop.call_later(CHANNEL_INTERVAL, self._reopen)
        elif self._connector.connection.is_open:
            self._connector.connection.channel(on_open_callback=self._on_channel_open)

    def _give_back(self) -> None:
        """Close the channel, so that the broker has its messages back."""
        self._pausing = None
        if self.intake.is_empty:
            self._pause()
        elif self._channel is not None and self._channel.is_open:
            self._settle()
            self._has_given_back = True
            self.intake.clear()
            _keep_order(self._channel)
            self._channel.close()

    # Ending

    def _on_cancelled(self, _frame: object) -> None:
        self._end(f"RabbitMQ ended the consumer: queue {self._queue.name!r} was deleted, or its node went down")
        self._close()

    def _on_channel_closed(self, _channel: Channel, error: Exception) -> None:
        if self._has_given_back:
            return
        # When the connection ends, pika closes its channels too.
        if self._connector.connection.is_open:
            self._end(f"RabbitMQ closed the channel: {explain_queue(error)}")
            self._close()

    def _on_lost(self, error: BaseException) -> None:
        if self.intake.error is None:
            self._nodes.note_failure(self._connector.status.host)
        self._end(f"the connection to RabbitMQ at {self.address} was lost: {explain(error)}")
        self._loop.stop()

    def _end(self, error: str) -> None:
        self._connector.finish()
        self.intake.end(error)
        self._is_ready.set()

    def _close(self) -> None:
        self._settle()
        self._end("the consumer was closed")
        # The broker's response must be read.
        self._loop.resume_reading()
        connection = self._connector.connection
        if self._channel is not None:
            _keep_order(self._channel)
        if connection.is_open:
            connection.close()
        elif not connection.is_closing:
            self._loop.stop()
        self._loop.call_later(CLOSE_TIMEOUT, self._cut)

    def _cut(self) -> None:
        connection = self._connector.connection
        if connection.is_closed:
            self._loop.stop()
            return
        self._loop.hang_up()
        self._loop.call_later(1.0, self._loop.stop)


def _keep_order(channel: Channel) -> None:
    """Let pika close a channel without `basic.cancel`.

    A quorum queue returns what is under way to a cancelled consumer behind later messages. pika has no option for this.
    """
    channel._consumers.clear()  # type: ignore[attr-defined]


def _ignore(*_: object) -> None:
    """Do nothing."""


def explain_queue(error: BaseException) -> str:
    """Return on one line why the broker closed the channel, and the remedy."""
    text = explain_channel(error)
    code = getattr(error, "reply_code", 0)
    if code == 404:
        return f"{text}: declare the queue, or correct the option queue"
    if code == 403 and "exclusive" in text:
        return f"{text}: another consumer has it for itself"
    if code == 403:
        return f"{text}: give the user of the url permission to read the queue"
    if code == 406 and "timeout" in text.lower():
        return f"{text}: the database took longer than the broker's consumer_timeout"
    return text
