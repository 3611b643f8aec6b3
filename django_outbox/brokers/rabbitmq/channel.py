"""One channel of a connection to RabbitMQ: sends one batch at a time and reads the broker's responses."""

import time
from collections.abc import Callable, Iterable

import pika
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from django_outbox.brokers.rabbitmq.batch import Batch
from django_outbox.brokers.rabbitmq.frames import append_message
from django_outbox.brokers.rabbitmq.options import PublishingOptions
from django_outbox.messages import ACCEPTED, rejected, retry_later

NACKED = retry_later(
    "the broker refused the message (basic.nack): a queue is full, or could not store it", error_class="rabbitmq.nack"
)


class Unconfirmed:
    """The messages sent over a channel that are not confirmed yet, by delivery tag.

    Confirms arrive in any order, for single tags and for all tags up to one, so tags are looked up and never counted.
    """

    def __init__(self) -> None:
        self.last_tag = 0
        self._lowest_tag = 1
        self._indexes: dict[int, int] = {}

    def add(self, indexes: Iterable[int]) -> None:
        """Add messages that have just been sent, by their index in the batch."""
        for index in indexes:
            self.last_tag += 1
            self._indexes[self.last_tag] = index

    def confirm(self, tag: int, *, multiple: bool) -> list[int]:
        """Remove the message with this tag, or with `multiple` all messages up to it. Return their indexes."""
        tags = range(tag, tag + 1)
        if multiple:
            tags = range(self._lowest_tag, tag + 1)
            self._lowest_tag = max(self._lowest_tag, tag + 1)
        return [self._indexes.pop(each) for each in tags if each in self._indexes]


class BatchChannel:
    """Carries one batch at a time: if the broker closes the channel because of a message, it is one of that batch.

    A channel lives on the connection's thread. It is free when it is open, and whenever its batch is complete.

    Attributes:
        number: the channel's number within the connection.
        is_open: whether it can send.
        nacked: whether the broker refused a message over it with basic.nack.
        batch: the batch in flight, if any.
    """

    def __init__(
        self,
        connection: pika.SelectConnection,
        options: PublishingOptions,
        *,
        write: Callable[[bytes], None],
        on_free: Callable[["BatchChannel"], None],
        on_closed: Callable[["BatchChannel", Exception], None],
    ) -> None:
        self.is_open = False
        self.nacked = False
        self.batch: Batch | None = None
        self._options = options
        self._write = write
        self._on_free = on_free
        self._on_closed = on_closed
        self._frame_max = connection.params.frame_max
        self._unconfirmed = Unconfirmed()
        self.restart_clock()
        self._channel = connection.channel(on_open_callback=self._on_open)
        self.number = int(self._channel.channel_number)

    @property
    def is_free(self) -> bool:
        """Whether it can take a batch."""
        return self.is_open and self.batch is None

    @property
    def seconds_waiting(self) -> float:
        """Seconds for which the broker has owed a response; 0 if it owes none."""
        return 0.0 if self.is_free else time.monotonic() - self._waiting_since

    def restart_clock(self) -> None:
        """Count `seconds_waiting` from now on."""
        self._waiting_since = time.monotonic()

    def close(self) -> None:
        """Drop the batch, if there is one, and close the channel."""
        self.batch = None
        if self._channel.is_open:
            self._channel.close()

    # Opening

    def _on_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(lambda _channel, error: self._on_closed(self, error))
        channel.add_on_return_callback(self._on_return)
        if self._options.declare_exchange:
            channel.exchange_declare(
                self._options.exchange,
                exchange_type=self._options.declare_exchange,
                durable=True,
                callback=self._on_exchange_declared,
            )
        else:
            self._on_exchange_declared()

    def _on_exchange_declared(self, _frame: object = None) -> None:
        if not self._options.dangerously_disable_confirms:
            self._channel.confirm_delivery(self._on_confirm, callback=self._on_ready)
        else:
            self._on_ready()

    def _on_ready(self, _frame: object = None) -> None:
        self.is_open = True
        self._on_free(self)

    # Sending

    def take(self, batch: Batch) -> None:
        """Take a batch, to be sent by `send`."""
        self.batch = batch
        self.restart_clock()

    def send(self, max_messages: int) -> bool:
        """Send at most that many messages of the batch. Return whether there are more."""
        batch = self.batch
        if batch is None or batch.sent == len(batch.messages):
            return False
        stop = min(batch.sent + max_messages, len(batch.messages))
        sent: list[int] = []
        frames: list[bytes] = []
        for index in range(batch.sent, stop):
            if batch.outcomes[index] is not None:
                continue
            encoded = batch.encoded[index]
            if encoded.header_size > self._frame_max:
                error = (
                    f"the headers make a frame of {encoded.header_size:,} bytes in AMQP; "
                    f"the frame_max agreed with the broker is {self._frame_max:,}."
                )
                batch.set_outcome(index, rejected(error, error_class="rabbitmq.too_large"))
                continue
            append_message(frames, self.number, encoded, batch.messages[index].payload, self._frame_max)
            sent.append(index)
        batch.sent = stop
        if sent:
            self._write(b"".join(frames))
            self._unconfirmed.add(sent)
            self.restart_clock()
            if self._options.dangerously_disable_confirms:
                self._confirm_when_read()
        self._release_if_complete()
        return self.batch is not None and stop < len(batch.messages)

    def _confirm_when_read(self) -> None:
        """Without confirms: the response to any request shows that the broker has read everything sent before it."""
        tag = self._unconfirmed.last_tag
        self._channel.basic_qos(callback=lambda _frame: self.confirm(True, tag, True))

    # Responses (only newer releases of pika have generic frames, so their types are quoted)

    def _on_confirm(self, frame: "Method[Basic.Ack | Basic.Nack]") -> None:
        method = frame.method
        self.confirm(isinstance(method, Basic.Ack), method.delivery_tag, method.multiple)

    def confirm(self, ack: bool, tag: int, multiple: bool) -> None:
        """Record that the broker confirmed, or nacked, the message with this tag, or all messages up to it."""
        indexes = self._unconfirmed.confirm(tag, multiple=multiple)
        if self.batch is not None and indexes:
            self.nacked = self.nacked or not ack
            self.batch.confirm(indexes, ACCEPTED if ack else NACKED)
            self.restart_clock()
            self._release_if_complete()

    def _on_return(self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes) -> None:
        error = (
            f"unroutable: {method.reply_code} {method.reply_text}, exchange {method.exchange!r}, "
            f"routing key {method.routing_key!r}; bind a queue, or set mandatory=False"
        )
        if self.batch is not None:
            self.batch.note_return(str(properties.message_id), rejected(error, error_class="rabbitmq.unroutable"))

    def _release_if_complete(self) -> None:
        if self.batch is not None and not self.batch.missing:
            self.batch = None
            self._on_free(self)
