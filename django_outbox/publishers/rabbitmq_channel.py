"""One channel of a connection to RabbitMQ: it sends a batch at a time, and reads the broker's answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import pika
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from django_outbox.messages import ACCEPTED, not_now, rejected
from django_outbox.publishers.rabbitmq_batch import Batch, Unconfirmed
from django_outbox.publishers.rabbitmq_encoding import append_frames

NACKED = not_now(
    "the broker refused the message for now (basic.nack): a queue is full, or could not store it",
    error_class="rabbitmq.nack",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelOptions:
    """What a channel is made of."""

    exchange: str
    declare_exchange: str | None
    confirms: bool


class BatchChannel:
    """Carries one batch at a time: when the broker closes it because of a message, that is one of this batch.

    Everything of it runs in the connection's thread.

    Args:
        connection: an open connection.
        options: what to open it with.
        write: sends bytes over the connection.
        on_free: called when it is open, and whenever its batch is answered.
        on_closed: called with the reason when the broker has closed it.
    """

    def __init__(
        self,
        connection: pika.SelectConnection,
        options: ChannelOptions,
        *,
        write: Callable[[bytes], None],
        on_free: Callable[["BatchChannel"], None],
        on_closed: Callable[["BatchChannel", Exception], None],
    ) -> None:
        self.open = False
        self.batch: Batch | None = None
        self._options = options
        self._write = write
        self._on_free = on_free
        self._on_closed = on_closed
        self._frame_max = connection.params.frame_max
        self._unconfirmed = Unconfirmed()
        self.touch()
        self._channel = connection.channel(on_open_callback=self._on_open)

    @property
    def number(self) -> int:
        """Its number in the connection."""
        return int(self._channel.channel_number)

    @property
    def free(self) -> bool:
        """Whether it can take a batch."""
        return self.open and self.batch is None

    @property
    def silence(self) -> float:
        """For how many seconds the broker owes an answer."""
        return 0.0 if self.free else time.monotonic() - self._touched_at

    def touch(self) -> None:
        """Begin to count the silence of the broker anew."""
        self._touched_at = time.monotonic()

    # The beginning

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
        if self._options.confirms:
            self._channel.confirm_delivery(self._on_confirm, callback=self._on_ready)
        else:
            self._on_ready()

    def _on_ready(self, _frame: object = None) -> None:
        self.open = True
        self._on_free(self)

    # Sending

    def carry(self, batch: Batch) -> None:
        """Take a batch; `send` sends it."""
        self.batch = batch
        self.touch()

    def send(self, most: int) -> bool:
        """Send at most so many messages of the batch, and say whether there are more."""
        batch = self.batch
        if batch is None or batch.sent == len(batch.messages):
            return False
        stop = min(batch.sent + most, len(batch.messages))
        sent: list[int] = []
        frames: list[bytes] = []
        for index in range(batch.sent, stop):
            encoded = batch.to_send(index)
            if encoded is None:
                continue
            if encoded.header_size > self._frame_max:
                error = (
                    f"the headers make a frame of {encoded.header_size:,} bytes in AMQP; "
                    f"the frame_max agreed with the broker is {self._frame_max:,}."
                )
                batch.answer(index, rejected(error, error_class="rabbitmq.too_large"))
                continue
            append_frames(frames, self.number, encoded, batch.messages[index].payload, self._frame_max)
            sent.append(index)
        batch.sent = stop
        if sent:
            self._write(b"".join(frames))
            self._unconfirmed.add(sent)
            self.touch()
            if not self._options.confirms:
                self._ask_whether_read()
        self._let_go()
        return self.batch is not None and stop < len(batch.messages)

    def _ask_whether_read(self) -> None:
        """Without confirms: any call with an answer tells that the broker has read what was sent before it."""
        tag = self._unconfirmed.last_tag
        self._channel.basic_qos(callback=lambda _frame: self.confirm(True, tag, True))

    # Answers (frames are generic only in newer releases of pika, so their types are quoted)

    def _on_confirm(self, frame: "Method[Basic.Ack | Basic.Nack]") -> None:
        method = frame.method
        self.confirm(isinstance(method, Basic.Ack), method.delivery_tag, method.multiple)

    def confirm(self, ack: bool, tag: int, multiple: bool) -> None:
        """Note that the broker confirmed, or refused, the message with this tag, or all up to it."""
        indexes = self._unconfirmed.confirm(tag, multiple=multiple)
        if self.batch is not None and indexes:
            self.batch.confirm(indexes, ACCEPTED if ack else NACKED)
            self.touch()
            self._let_go()

    def _on_return(self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes) -> None:
        error = (
            f"unroutable: {method.reply_code} {method.reply_text}, exchange {method.exchange!r}, "
            f"routing key {method.routing_key!r}; bind a queue, or set mandatory=False"
        )
        if self.batch is not None:
            self.batch.note_return(str(properties.message_id), rejected(error, error_class="rabbitmq.unroutable"))

    def _let_go(self) -> None:
        """Be free again when the batch is answered."""
        if self.batch is not None and not self.batch.missing:
            self.batch = None
            self._on_free(self)
