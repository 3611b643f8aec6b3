"""A batch of messages, and the channel that sends it and reads the broker's responses."""

import time
from collections.abc import Callable, Iterable, Sequence

import pika
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic, BasicProperties

from django_outbox.brokers.call import PendingCall
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.brokers.rabbitmq.encoding import Encoded
from django_outbox.brokers.rabbitmq.options import PublishingOptions
from django_outbox.brokers.rabbitmq.wire import append_message
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later

NACKED = retry_later(
    "the broker refused the message (basic.nack): a queue is full, or could not store it", error_class="rabbitmq.nack"
)


class ChannelCall(PendingCall[Message, Encoded]):
    """Messages that were submitted together.

    After `wait`, a message has no outcome if the broker refused one of them without identifying it (`refusal`), or
    responds, but did not confirm it (`stalled`).

    Attributes:
        sent: the number of messages, from the first on, that were passed to a channel.
        stalled: whether the broker responds, but does not confirm all messages.
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        super().__init__(messages, encode, carrier="AMQP", error_class="rabbitmq")
        self.sent = 0
        self.stalled = False
        self.refusal: BatchRefused | None = None
        self.nacked = False
        self._returned: dict[int, Outcome] = {}
        self._unreturned: dict[str, list[int]] = {}

    @property
    def is_clean(self) -> bool:
        """Whether every message has an outcome, and the broker nacked none."""
        return not (self.stalled or self.nacked or self.missing)

    def confirm(self, indexes: Sequence[int], outcome: Outcome) -> None:
        """Set the outcome of confirmed or nacked messages. A message that was returned before is not accepted."""
        if self._returned and outcome is ACCEPTED:
            for index in indexes:
                self.set_outcome(index, self._returned.get(index, ACCEPTED))
        else:
            self.nacked = self.nacked or outcome is not ACCEPTED
            for index in indexes:
                self.set_outcome(index, outcome)

    def reject_larger(self, limit: int) -> bool:
        """Reject messages without an outcome whose payload exceeds the broker's limit in bytes. False if none does."""
        missing = self.missing
        error = f"the payload is beyond the broker's max_message_size of {limit:,} bytes"
        for index, message in enumerate(self.messages):
            if len(message.payload) > limit:
                self.set_outcome(index, rejected(error, error_class="rabbitmq.too_large"))
        return self.missing < missing

    def stall(self) -> None:
        """Give up waiting: the broker responds, but does not confirm the messages without an outcome."""
        self._settle_returned()
        if self.missing:
            self.stalled = True
            self.end()

    def refuse(self, error: str, cause: Exception, *, permanent: bool) -> None:
        """Record that the broker refused one of the messages without an outcome, and read no further ones."""
        self._settle_returned()
        if self.missing == 1:
            refused = rejected if permanent else retry_later
            self.set_missing(refused(error, error_class="rabbitmq.refused", cause=cause))
        elif self.missing:
            self.refusal = BatchRefused(error, self.outcomes, permanent=permanent, error_class="rabbitmq.refused")
            self.refusal.__cause__ = cause
            self.end()

    def note_return(self, message_id: str, outcome: Outcome) -> None:
        """Keep the outcome of a returned message, because the confirm that follows would accept it.

        A return carries no delivery tag. If a message is in a batch twice, its returns arrive in the order of sending.
        """
        if not self._unreturned:
            for index, message in enumerate(self.messages):
                self._unreturned.setdefault(message.message_id, []).append(index)
        indexes = self._unreturned.get(message_id)
        if indexes:
            self._returned[indexes.pop(0)] = outcome

    def _settle_returned(self) -> None:
        for index, outcome in self._returned.items():
            self.set_outcome(index, outcome)


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
        nacked: whether the broker refused a message over it with basic.nack.
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
        self.batch: ChannelCall | None = None
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

    def take(self, batch: ChannelCall) -> None:
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
