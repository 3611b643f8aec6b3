"""`RabbitMQConsumer`: reads a queue, and settles what was stored."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import pika
from pika.adapters.utils.nbio_interface import AbstractStreamProtocol
from pika.channel import Channel

from django_outbox.brokers.consumer import ConnectedConsumer, ConsumerConnection, Incoming, Intake
from django_outbox.brokers.options import require_text
from django_outbox.brokers.rabbitmq.connection import CLOSE_TIMEOUT, RabbitMQConnection
from django_outbox.brokers.rabbitmq.encoding import read_delivery
from django_outbox.brokers.rabbitmq.errors import explain
from django_outbox.brokers.rabbitmq.options import MAX_SHORT, RabbitMQOptions, require_short_string
from django_outbox.brokers.rabbitmq.wire import Delivered, DeliveryWire
from django_outbox.utils.logs import logger
from django_outbox.utils.rates import Allowance
from django_outbox.utils.text import one_line

REFUSED_BY_STREAMS = {"x-priority": 0}
"""The default priority of a consumer, which RabbitMQ refuses only if the queue is a stream. Each consumer of a stream
begins at its end, and `Window` begins another consumer again and again, so the messages in between would be skipped."""

MANY_RETURNS = 10
"""Number of returns of a message to its queue that is logged, at most once in `WARNING_INTERVAL` seconds."""

WARNING_INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits of a connection that are not options; tests pass others.

    Args:
        first_size: number of messages that are delivered ahead before any was stored.
        read_interval: seconds after which a connection that reads nothing, because the reader is behind, reads a
            little: pika considers a connection dead if it receives nothing for a while, heartbeats included.
    """

    first_size: int = 1
    read_interval: float = 1.0


class Window:
    """Decides how many messages are delivered ahead, and when they are settled with the broker.

    A quorum queue counts each return of a message, and drops or dead-letters it at the queue's delivery limit, 20 by
    default in RabbitMQ 4. A reader that is killed, or loses its connection, returns everything that was delivered to
    it. Therefore the first window is one message, and each window that was stored doubles the next one. A reader then
    never returns many more messages than it has stored, so a message that several readers return soon comes first.

    While windows grow, settled messages must not make room for others. Such a window is settled as a whole, after the
    consumer was cancelled: nothing is then on its way from the queue.

    Windows grow up to `max_size` messages that may be unsettled. A window of that size is refilled.
    """

    def __init__(self, max_size: int, first_size: int = 1) -> None:
        self._max_size = max_size
        self._first_size = first_size
        self.restart()

    def restart(self) -> None:
        """Begin with the first window of a channel, which numbers its deliveries from 1."""
        self.size = min(self._first_size, self._max_size)
        self._delivered = self._stored = self._settled = 0
        self._accepted = 0
        self._rejected: list[int] = []

    def note_delivery(self, tag: int) -> None:
        self._delivered = tag

    def note_stored(self, accepted: int, rejected: Sequence[int]) -> None:
        """Note that deliveries can be settled: accepted up to this tag, unless it is 0, except for the rejected."""
        self._accepted = max(self._accepted, accepted)
        self._rejected += rejected
        self._stored = max(self._stored, accepted, *rejected)

    @property
    def is_refilled(self) -> bool:
        return self.size == self._max_size

    @property
    def is_complete(self) -> bool:
        return self._stored == self._delivered == self._settled + self.size

    def settle(self) -> tuple[int, list[int]]:
        """Return what to settle now: the tag up to which to accept deliveries, or 0, and the tags to reject."""
        accepted, rejected = self._accepted, self._rejected
        self._settled = self._stored
        self._accepted, self._rejected = 0, []
        return accepted, rejected

    def grow(self) -> None:
        self.size = min(2 * self.size, self._max_size)


@dataclass(kw_only=True, eq=False, repr=False)
class RabbitMQConsumer(RabbitMQOptions, ConnectedConsumer):
    """Reads a queue. It declares nothing: the queue, its bindings and its dead-letter exchange must exist.

    Args:
        queue: the queue to read.
        timeout: seconds until connecting to all nodes is given up.
        options: `url`, `connect_timeout` and `ssl` as for `RabbitMQPublisher`, and the options of every consumer; see
            `Consumer`.
    """

    broker_name: ClassVar[str] = "RabbitMQ"

    queue: str
    timeout: float = 15.0
    limits: ReadingLimits = field(init=False, default=ReadingLimits())

    def __post_init__(self) -> None:
        RabbitMQOptions.__post_init__(self)
        ConnectedConsumer.__post_init__(self)
        require_text("queue", self.queue, "'billing'")
        require_short_string("queue", self.queue)

    @property
    def source(self) -> str:
        return f"queue {self.queue!r} at {', '.join(f'{host.host}:{host.port}' for host in self.hosts)}"

    def _make_connection(self) -> "RabbitMQConsumerConnection":
        return RabbitMQConsumerConnection(self)


class RabbitMQConsumerConnection(RabbitMQConnection, ConsumerConnection):
    """Consumes a queue, while the reader takes as long as it needs."""

    kind = "consumer"

    def __init__(self, consumer: RabbitMQConsumer) -> None:
        super().__init__(consumer, self._make_wire)
        self._queue = consumer.queue
        # While one batch is stored, the next one arrives.
        self._window = Window(min(2 * consumer.batch_size, MAX_SHORT), consumer.limits.first_size)
        self._read_interval = consumer.limits.read_interval
        self.intake = Intake(2 * consumer.batch_bytes, partial(self._call, self._loop.resume_reading))
        self._channel: Channel | None = None
        self._consumer_tag = ""
        self._is_reading = False
        self._warnings = Allowance(1, WARNING_INTERVAL)
        self._thread.start()

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._is_reading:
            self._call(self._begin)
        messages = self.intake.take(max_messages, max_bytes, seconds)
        if not messages:
            self._call(self._settle)
        return messages

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        accepted = max((message.tag for message in batch if message.tag not in rejected), default=0)
        self._call(partial(self._on_stored, accepted, sorted(rejected)))

    def close(self) -> None:
        self._call(partial(self._settle_and_close, "the consumer was closed"))
        self._thread.join(2 * CLOSE_TIMEOUT)

    # Beginning

    def _make_wire(self, connection: AbstractStreamProtocol) -> DeliveryWire:
        return DeliveryWire(connection, self._on_delivery, has_heartbeats=bool(self.host.heartbeat))

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        self._channel = channel
        self._window.restart()
        channel.add_on_close_callback(self._on_channel_closed)
        channel.add_on_cancel_callback(self._on_cancelled)
        channel.queue_declare(self._queue, passive=True, callback=self._on_found)

    def _on_found(self, _frame: object) -> None:
        if not self._is_ready_or_ended.is_set():
            self._note_ready(f"reads queue {self._queue!r} at {self.address}")
        if self._is_reading:
            self._begin_window()

    def _begin(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self._begin_window()

    def _begin_window(self) -> None:
        channel = self._channel
        if channel is not None and channel.is_open:
            channel.basic_qos(prefetch_count=self._window.size, callback=partial(self._consume, channel))

    def _consume(self, channel: Channel, _frame: object) -> None:
        if channel.is_open:
            # The wire takes the deliveries.
            self._consumer_tag = channel.basic_consume(self._queue, lambda *_: None, arguments=REFUSED_BY_STREAMS)

    # Reading

    def _on_delivery(self, delivery: Delivered) -> None:
        self._window.note_delivery(delivery.tag)
        incoming = read_delivery(delivery)
        if incoming.returns >= MANY_RETURNS and self._warnings.take():
            self._warn_of_limit(incoming)
        if not self.intake.put(incoming):
            self._loop.pause_reading(self._read_interval)

    def _warn_of_limit(self, incoming: Incoming) -> None:
        logger.warning(
            "%s: message %s of queue %r has been returned to the queue %d times. At its delivery limit (20 by "
            "default in RabbitMQ 4), the queue drops it, or moves it to its dead-letter exchange. Find out in the log "
            "why readers end before they store it; until then, raise delivery-limit with a policy.",
            self._owner,
            one_line(incoming.message_id, 100) or "without an ID",
            self._queue,
            incoming.returns,
            event="consumer.message_returned",
            subject=self._owner,
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

    # Ending

    def _on_cancelled(self, _frame: object) -> None:
        self._settle_and_close(
            f"RabbitMQ ended the consumer: queue {self._queue!r} was deleted, its node went down, or a message was not "
            "acknowledged within the consumer timeout (quorum queues since RabbitMQ 4.3)"
        )

    def _on_channel_closed(self, _channel: Channel, error: Exception) -> None:
        # When the connection ends, pika closes its channels too.
        if self._connection.is_open:
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
