"""One connection to RabbitMQ, and the thread that serves it."""

import copy
import logging
import random
import threading
from collections import deque
from dataclasses import dataclass

import pika
from pika.exceptions import ConnectionBlockedTimeout
from pika.frame import Method
from pika.spec import Connection as ConnectionMethods

from django_outbox.messages import unanswered
from django_outbox.publishers.rabbitmq_batch import Batch
from django_outbox.publishers.rabbitmq_channel import BatchChannel, ChannelOptions
from django_outbox.publishers.rabbitmq_errors import (
    blames_message,
    explain,
    explain_channel,
    lacks_permission,
    max_message_size,
)
from django_outbox.publishers.rabbitmq_loop import Loop
from django_outbox.publishers.rabbitmq_wire import WireServices

logger = logging.getLogger("django_outbox")

SLICE = 1000
"""How many messages are sent before confirms and heartbeats get their turn."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the broker has for a clean end of the connection, before it is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What a connection is made of; times are in seconds."""

    alias: str
    hosts: tuple[pika.URLParameters, ...]
    channel: ChannelOptions
    timeout: float
    blocked_timeout: float


class RabbitMQConnection:
    """One life of a connection: it connects, sends batches and ends; after that a new one has to be made.

    A thread of its own serves it, so that confirms, heartbeats and the broker's `connection.blocked` are read whatever
    the callers do meanwhile. Batches of several callers go side by side, each over a channel of its own: one that the
    broker closes because of a message takes no other batch with it.
    What begins with an underscore runs in that thread; the rest may be called from any.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._over = False
        self._unsent: deque[Batch] = deque()
        self._channels: list[BatchChannel] = []
        self._ready = False
        self._blocked: str | None = None
        self._watching = False
        first = random.randrange(len(options.hosts))  # noqa: S311 (spreads load, hides nothing)
        self._hosts = deque(options.hosts[first:] + options.hosts[:first])
        self._failures: list[str] = []
        self._loop = Loop()
        self._wire = WireServices(self._loop, self._on_confirm)
        self._thread = threading.Thread(target=self._run, name=f"outbox-rabbitmq-{options.alias}", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, or is ending, and takes no more batches."""
        return self._over

    def submit(self, batch: Batch) -> bool:
        """Take a batch, to be sent as soon as possible; False if the connection is over."""
        with self._lock:
            if self._over:
                return False
            self._unsent.append(batch)
        self._loop.add_callback_threadsafe(self._send)
        return True

    def close(self) -> None:
        """End the connection and wait until it has; what is unanswered stays so."""
        self._loop.add_callback_threadsafe(self._close)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.call_later(self._options.timeout, self._give_up_connecting)
            self._connect()
            self._loop.start()
        except Exception as error:
            logger.exception("Publisher %s: the connection to RabbitMQ failed", self._options.alias)
            self._finish(f"the connection to RabbitMQ failed: {error!r}")
        finally:
            self._finish("the connection to RabbitMQ ended")
            self._loop.hang_up()
            self._loop.close()

    # The beginning

    def _connect(self) -> None:
        parameters = copy.copy(self._hosts.popleft())
        self._address = f"{parameters.host}:{parameters.port}"
        self._connection = pika.SelectConnection(
            parameters, self._on_open, self._on_open_error, self._on_close, custom_ioloop=self._wire
        )

    def _on_open_error(self, _connection: pika.SelectConnection, error: BaseException) -> None:
        self._failures.append(f"{self._address}: {explain(error)}")
        if self._hosts and not self._over:
            self._connect()
        else:
            self._finish(f"cannot connect to RabbitMQ at {'; '.join(self._failures)}")
            self._loop.stop()

    def _give_up_connecting(self) -> None:
        if not self._ready and not self._over:
            failures = [*self._failures, f"{self._address}: no answer in time"]
            self._finish(f"cannot connect to RabbitMQ at {'; '.join(failures)}")
            self._cut()

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._open_channel()

    def _open_channel(self) -> None:
        channel = BatchChannel(
            self._connection,
            self._options.channel,
            write=self._wire.write,
            on_free=self._on_channel_free,
            on_closed=self._on_channel_closed,
        )
        self._channels.append(channel)

    def _on_channel_free(self, _channel: BatchChannel) -> None:
        if not self._ready:
            self._ready = True
            logger.info("Publisher %s: connected to RabbitMQ at %s", self._options.alias, self._address)
        if self._unsent:
            self._loop.add_callback_threadsafe(self._send)

    # Sending

    def _send(self) -> None:
        if not self._ready or self._over or self._blocked is not None:
            return
        for channel in self._channels:
            if self._unsent and channel.free:
                channel.carry(self._unsent.popleft())
        opening = sum(not channel.open for channel in self._channels)
        room = self._connection.params.channel_max - len(self._channels)
        for _ in range(min(len(self._unsent) - opening, room)):
            self._open_channel()
        unfinished = [channel.send(SLICE) for channel in self._channels]
        if any(unfinished):
            self._loop.add_callback_threadsafe(self._send)
        self._watch()

    def _on_confirm(self, number: int, ack: bool, tag: int, multiple: bool) -> None:
        for channel in self._channels:
            if channel.number == number:
                channel.confirm(ack, tag, multiple)

    # Waiting

    def _watch(self) -> None:
        """Have a silence noticed: one timer for all batches."""
        if not self._watching and not self._over and not all(channel.free for channel in self._channels):
            self._watching = True
            self._loop.call_later(max(0.0, self._options.timeout - self._silence()), self._on_silence)

    def _silence(self) -> float:
        """Return for how many seconds the channel that waits longest has waited for an answer."""
        return max((channel.silence for channel in self._channels), default=0.0)

    def _touch(self) -> None:
        for channel in self._channels:
            channel.touch()

    def _on_silence(self) -> None:
        self._watching = False
        timeout = self._options.timeout
        if self._blocked is not None:
            # pika ends a connection that stays blocked; only afterwards is a silence one.
            self._touch()
        elif self._silence() >= timeout:
            self._finish(f"RabbitMQ at {self._address} has not answered for {timeout:g} seconds")
            self._cut()
        self._watch()

    def _on_blocked(self, _connection: object, frame: "Method[ConnectionMethods.Blocked]") -> None:
        self._blocked = str(frame.method.reason)
        logger.warning("Publisher %s: RabbitMQ blocks the connection: %s", self._options.alias, self._blocked)

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self._blocked = None
        logger.info("Publisher %s: RabbitMQ blocks the connection no longer", self._options.alias)
        self._touch()
        self._send()

    # The end

    def _on_channel_closed(self, channel: BatchChannel, error: Exception) -> None:
        # When the connection ends, pika closes its channels too, and nothing is to be learned from that.
        if self._over or not self._connection.is_open:
            return
        batch = channel.batch
        if batch is None or not blames_message(error):
            self._finish(f"RabbitMQ closed the channel: {explain_channel(error)}")
            self._close()
            return
        self._channels.remove(channel)
        limit = max_message_size(error)
        if limit is not None and batch.reject_larger(limit):
            if batch.missing:
                batch.sent = 0
                self._unsent.appendleft(batch)
        else:
            text = f"RabbitMQ refused the message: {explain_channel(error)}"
            batch.refuse(text, error, permanent=not lacks_permission(error))
        self._send()

    def _on_close(self, _connection: pika.SelectConnection, error: BaseException) -> None:
        if isinstance(error, ConnectionBlockedTimeout):
            reason = f"was blocked for {self._options.blocked_timeout:g} seconds: {self._blocked}"
        else:
            reason = f"was lost: {explain(error)}"
        self._finish(f"the connection to RabbitMQ at {self._address} {reason}")
        self._loop.stop()

    def _finish(self, error: str) -> None:
        """Take no more batches and answer all that is unanswered; only the first call counts."""
        with self._lock:
            if self._over:
                return
            self._over = True
        batches = [*filter(None, (channel.batch for channel in self._channels)), *self._unsent]
        self._channels.clear()
        self._unsent.clear()
        logger.log(logging.WARNING if batches else logging.INFO, "Publisher %s: %s", self._options.alias, error)
        for batch in batches:
            batch.answer_rest(unanswered(error))

    def _close(self) -> None:
        self._finish("the publisher was closed")
        if not self._connection.is_closing and not self._connection.is_closed:
            self._connection.close()
        self._loop.call_later(CLOSE_TIMEOUT, self._cut)

    def _cut(self) -> None:
        """End the connection at once: what has not left this machine must not reach the broker after a new attempt."""
        if self._connection.is_open or self._connection.is_closing:
            self._loop.hang_up()
        elif not self._connection.is_closed:
            self._connection.close()
        self._loop.call_later(1.0, self._loop.stop)
