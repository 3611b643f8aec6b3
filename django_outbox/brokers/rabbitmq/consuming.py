"""One connection of a consumer to RabbitMQ: reads a queue, and settles what was stored."""

import math
import time
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import pika
from pika.channel import Channel

from django_outbox.brokers.consumer import Incoming, Unavailable
from django_outbox.brokers.intake import Intake
from django_outbox.brokers.rabbitmq.connection import CLOSE_TIMEOUT, Nodes, RabbitMQConnection
from django_outbox.brokers.rabbitmq.decoding import read_delivery
from django_outbox.brokers.rabbitmq.errors import explain
from django_outbox.brokers.rabbitmq.options import ConnectionOptions, QueueOptions
from django_outbox.brokers.rabbitmq.window import Window
from django_outbox.brokers.rabbitmq.wire import Delivered, DeliveryWire
from django_outbox.logs import logger
from django_outbox.text import one_line

CHANNEL_INTERVAL = 0.01
"""Seconds between two checks that a channel is closed."""

MAX_HOLD_TIME = 600.0
"""Seconds for which messages are held while the consumer pauses. By default RabbitMQ closes a channel with a message
that was not acknowledged for 30 minutes (https://www.rabbitmq.com/docs/consumers#acknowledgement-timeout)."""

MANY_RETURNS = 10
"""Minimum number of times that a message was returned to its queue for a warning."""

WARNING_INTERVAL = 60.0
"""Seconds between two such warnings."""

READ_INTERVAL = 1.0
"""Seconds after which a connection that reads nothing, because the reader is behind, reads a little: pika considers a
connection dead if it receives nothing for a while, heartbeats included."""


class ConsumingConnection(RabbitMQConnection):
    """Consumes a queue, while the reader takes as long as it needs.

    At most `max_messages` will be settled; None is no limit.
    """

    owner = "Consumer"

    def __init__(
        self, options: ConnectionOptions, queue: QueueOptions, nodes: Nodes, max_messages: int | None = None
    ) -> None:
        super().__init__(options, nodes, lambda connection: DeliveryWire(connection, self._on_delivery))
        self._queue = queue
        self._window = Window(queue.max_prefetch, max_messages)
        self.intake = Intake(queue.max_buffer_bytes, partial(self._call, self._loop.resume_reading))
        self._channel: Channel | None = None
        self._consumer_tag = ""
        self._is_reading = False
        self._warned_at = -math.inf
        self._has_given_back = False
        self._is_reopening = False
        self._pausing: Any = None
        self._thread.start()

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
        """Hand over nothing. The broker soon delivers no more, because nothing is acknowledged."""
        self.intake.hold()
        self._call(self._pause)

    def resume(self) -> None:
        """Hand over what was delivered, and let the broker deliver again."""
        self._call(self._resume)

    def is_drained(self) -> bool:
        """Return whether the queue has no message that could be received now.

        Raises:
            Unavailable: the connection has ended.
        """
        # Twice: when the queue answers, the last message may be on its way from the queue to the channel.
        return all(self.intake.is_empty and self._is_queue_empty() and self.intake.is_empty for _ in range(2))

    def _is_queue_empty(self) -> bool:
        answers: SimpleQueue[bool] = SimpleQueue()

        def ask() -> None:
            channel = self._channel
            if self._has_given_back or channel is None or not channel.is_open:
                answers.put(False)
            else:
                channel.queue_declare(self._queue.name, passive=True, callback=note)

        def note(frame: Any) -> None:
            answers.put(not frame.method.message_count)

        self._call(ask)
        while not self.error:
            with suppress(Empty):
                return answers.get(timeout=0.05)
        raise Unavailable(self.error)

    def close(self) -> None:
        """Close the connection after everything that was settled was sent, and wait for its end."""
        self._call(partial(self._settle_and_close, "the consumer was closed"))
        self._thread.join(2 * CLOSE_TIMEOUT)

    # Beginning

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        self._has_given_back = self._is_reopening = False
        self._window.restart()
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)
        channel.queue_declare(self._queue.name, passive=True, callback=self._on_found)

    def _on_found(self, _frame: object) -> None:
        if not self._is_settled.is_set():
            self._note_ready(f"reads queue {self._queue.name!r} at {self.address}")
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
            self._consumer_tag = channel.basic_consume(self._queue.name, lambda *_: None)

    # Reading

    def _on_delivery(self, delivery: Delivered) -> None:
        if self._has_given_back:
            # The channel is being closed, so the broker delivers it again.
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
            self._options.alias,
            one_line(incoming.message_id, 100) or "without an ID",
            self._queue.name,
            incoming.returns,
            event="consumer.message_returned",
            consumer=self._options.alias,
            message_id=incoming.message_id,
            count=incoming.returns,
        )

    def _on_stored(self, accepted: int, rejected: list[int]) -> None:
        self._window.note_stored(accepted, rejected)
        if self._window.is_refilled:
            self._settle()
        elif self._window.is_complete and self._channel is not None and self._channel.is_open:
            self._channel.basic_cancel(self._consumer_tag, lambda _frame: self._end_window())

    def _end_window(self) -> None:
        self._settle()
        if not self.error:
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
        elif self._connection.is_open:
            self._connection.channel(on_open_callback=self._on_channel_open)

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
        name = self._queue.name
        self._settle_and_close(f"RabbitMQ ended the consumer: queue {name!r} was deleted, or its node went down")

    def _on_channel_closed(self, _channel: Channel, error: Exception) -> None:
        # When the connection ends, pika closes its channels too.
        if not self._has_given_back and self._connection.is_open:
            self._settle_and_close(f"RabbitMQ closed the channel: {explain(error)}")

    def _settle_and_close(self, error: str) -> None:
        self._settle()
        # The broker's response must be read.
        self._loop.resume_reading()
        if self._channel is not None:
            _keep_order(self._channel)
        self._close(error)

    def _release(self, error: str) -> None:
        self.intake.end(error)


def _keep_order(channel: Channel) -> None:
    """Let pika close a channel without `basic.cancel`.

    A quorum queue returns what is under way to a cancelled consumer behind later messages. pika has no option for this.
    """
    channel._consumers.clear()  # type: ignore[attr-defined]
