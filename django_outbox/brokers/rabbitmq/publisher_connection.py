"""One connection of a publisher to RabbitMQ: sends transmissions over channels, and reads the broker's responses."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import pika
from pika.adapters.utils.nbio_interface import AbstractStreamProtocol
from pika.channel import Channel
from pika.exceptions import ConnectionBlockedTimeout
from pika.frame import Method
from pika.spec import Basic, BasicProperties
from pika.spec import Connection as ConnectionMethods

from django_outbox.brokers.call import PendingCall
from django_outbox.brokers.rabbitmq.connection import RabbitMQConnection
from django_outbox.brokers.rabbitmq.encoding import Encoded
from django_outbox.brokers.rabbitmq.errors import blames_message, explain, lacks_permission
from django_outbox.brokers.rabbitmq.options import PublishingOptions
from django_outbox.brokers.rabbitmq.wire import ConfirmWire, append_message
from django_outbox.messages import ACCEPTED, Message, Outcome, rejected, retry_later, unanswered

MAX_CLOSING = 100
"""Maximum number of abandoned channels that the broker has not closed; beyond it, another connection takes over."""

MAX_MESSAGES_PER_TURN = 1000
"""Number of messages that a channel sends before the loop handles confirms and heartbeats."""

CLOSED = "the publisher was closed"
REPLACED = "another connection has taken over"

NACKED = retry_later(
    "the broker refused the message (basic.nack): a queue is full, or could not store it", error_class="rabbitmq.nack"
)


class Transmission(PendingCall[Message, Encoded]):
    """Messages that were submitted together.

    After `wait`, a message has no outcome if the broker refused one of them without identifying it (`refusal`), or did
    not confirm it (`stalled`).
    """

    def __init__(self, messages: Sequence[Message], encode: Callable[[Message], Encoded]) -> None:
        super().__init__(messages, encode, carrier="AMQP", error_class="rabbitmq")
        self.sent = 0
        self.stalled = False
        self.nacked = False
        self._returned: dict[int, Outcome] = {}
        self._unreturned: dict[str, list[int]] = {}

    @property
    def needs_no_trial(self) -> bool:
        """Whether each message has an outcome and none was nacked, so no destination is suspected."""
        return not (self.stalled or self.nacked or self.missing)

    def confirm(self, indexes: Sequence[int], outcome: Outcome) -> None:
        """Set the outcome of confirmed or nacked messages. A message that was returned before is not accepted."""
        if self._returned and outcome is ACCEPTED:
            for index in indexes:
                self.set_outcome(index, self._returned.get(index, ACCEPTED))
        else:
            self.nacked = self.nacked or outcome is not ACCEPTED
            self.set_outcomes(indexes, outcome)

    def stall(self) -> None:
        """Mark the transmission as stalled: the broker does not confirm the remaining messages."""
        self._settle_returned()
        if self.missing:
            self.stalled = True
            self.end()

    def refuse(self, error: str, cause: BaseException, *, permanent: bool = True) -> None:
        self._settle_returned()
        super().refuse(error, cause, permanent=permanent)

    def note_return(self, message_id: str, outcome: Outcome) -> None:
        """Keep the outcome of a returned message, because the confirm that follows would accept it.

        A return carries no delivery tag. If a message is in it twice, its returns arrive in the order of sending.
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

    def add(self, indexes: Sequence[int]) -> None:
        tags = range(self.last_tag + 1, self.last_tag + 1 + len(indexes))
        self._indexes |= zip(tags, indexes, strict=True)
        self.last_tag += len(indexes)

    def confirm(self, tags: Sequence[int], *, multiple: bool) -> list[int]:
        """Remove the messages with these tags, or with `multiple` all up to the last one. Return their indexes."""
        if multiple:
            tags = range(self._lowest_tag, tags[-1] + 1)
            self._lowest_tag = max(self._lowest_tag, tags.stop)
        return [self._indexes.pop(each) for each in tags if each in self._indexes]


class PublisherChannel:
    """Carries one transmission at a time, so if the broker closes it because of a message, that one is the cause.

    A channel lives on the connection's thread. It is free when it is open, and whenever its transmission is complete.
    """

    def __init__(
        self,
        connection: pika.SelectConnection,
        options: PublishingOptions,
        *,
        write: Callable[[bytes], None],
        on_free: Callable[["PublisherChannel"], None],
        on_closed: Callable[["PublisherChannel", Exception], None],
    ) -> None:
        self.is_open = False
        self.nacked = False
        self.transmission: Transmission | None = None
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
        return self.is_open and self.transmission is None

    @property
    def seconds_waiting(self) -> float:
        """Seconds for which the broker has owed a response; 0 if it owes none."""
        return 0.0 if self.is_free else time.monotonic() - self._waiting_since

    def restart_clock(self) -> None:
        self._waiting_since = time.monotonic()

    def close(self) -> None:
        self.transmission = None
        if self._channel.is_open:
            self._channel.close()

    # Opening

    def _on_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(lambda _channel, error: self._on_closed(self, error))
        channel.add_on_return_callback(self._on_return)
        exchange, declared = self._options.exchange, self._options.declare_exchange
        if exchange:
            # The broker closes the channel if the exchange is missing, or has another type.
            channel.exchange_declare(
                exchange, declared or "", passive=not declared, durable=True, callback=self._on_exchange_found
            )
        else:
            self._on_exchange_found()

    def _on_exchange_found(self, _frame: object = None) -> None:
        # The wire takes the confirms.
        self._channel.confirm_delivery(lambda *_: None, callback=self._on_ready)

    def _on_ready(self, _frame: object) -> None:
        self.is_open = True
        self._on_free(self)

    # Sending

    def take(self, transmission: Transmission) -> None:
        self.transmission = transmission
        self.restart_clock()

    def send(self, max_messages: int) -> bool:
        transmission = self.transmission
        if transmission is None or transmission.sent == len(transmission.messages):
            return False
        stop = min(transmission.sent + max_messages, len(transmission.messages))
        sent: list[int] = []
        frames: list[bytes] = []
        for index in range(transmission.sent, stop):
            if transmission.outcomes[index] is not None:
                continue
            encoded = transmission.encoded[index]
            if encoded.header_size > self._frame_max:
                error = (
                    f"the headers make a frame of {encoded.header_size:,} bytes in AMQP; "
                    f"the frame_max agreed with the broker is {self._frame_max:,}."
                )
                transmission.set_outcome(index, rejected(error, error_class="rabbitmq.too_large"))
                continue
            append_message(frames, self.number, encoded, transmission.messages[index].payload, self._frame_max)
            sent.append(index)
        transmission.sent = stop
        if sent:
            self._write(b"".join(frames))
            self._unconfirmed.add(sent)
            self.restart_clock()
        self._release_if_complete()
        return self.transmission is not None and stop < len(transmission.messages)

    # Responses

    def confirm(self, ack: bool, tags: Sequence[int], multiple: bool) -> None:
        indexes = self._unconfirmed.confirm(tags, multiple=multiple)
        if self.transmission is not None and indexes:
            self.nacked = self.nacked or not ack
            self.transmission.confirm(indexes, ACCEPTED if ack else NACKED)
            self.restart_clock()
            self._release_if_complete()

    def _on_return(self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes) -> None:
        error = (
            f"unroutable: {method.reply_code} {method.reply_text}, exchange {method.exchange!r}, "
            f"routing key {method.routing_key!r}; bind a queue, or set mandatory=False"
        )
        if self.transmission is not None:
            self.transmission.note_return(
                str(properties.message_id), rejected(error, error_class="rabbitmq.unroutable")
            )

    def _release_if_complete(self) -> None:
        if self.transmission is not None and not self.transmission.missing:
            self.transmission = None
            self._on_free(self)


class RabbitMQPublisherConnection(RabbitMQConnection):
    """Sends transmissions side by side, each over its own channel.

    So a channel that the broker closes because of a message takes no other transmission with it.

    If the broker confirms nothing for a while, the transmissions are given back as stalled. Another connection then
    shows whether it responds at all.
    """

    kind = "publisher"

    def __init__(self, options: PublishingOptions) -> None:
        super().__init__(options, self._make_wire)
        self._options = options
        self._lock = Lock()
        self._unsent: deque[Transmission] = deque()
        self.accepts_more = True
        self._channels: list[PublisherChannel] = []
        # Abandoned channels that the broker has not closed yet.
        self._closing = 0
        self._blocked_reason: str | None = None
        self._is_watching = False
        self._thread.start()

    def submit(self, transmission: Transmission) -> bool:
        """Queue a transmission for sending. Returns False if the connection is retired or has ended."""
        with self._lock:
            if not self.accepts_more:
                return False
            self._unsent.append(transmission)
        self._call(self._send)
        return True

    def retire(self) -> None:
        """Accept no more transmissions, and close the connection when all others are complete."""
        self._accept_no_more()
        self._call(self._close_if_retired)

    def close(self) -> None:
        self._call(partial(self._close, CLOSED))
        self._thread.join()

    def _accept_no_more(self) -> None:
        with self._lock:
            self.accepts_more = False

    # Channels

    def _make_wire(self, connection: AbstractStreamProtocol) -> ConfirmWire:
        return ConfirmWire(connection, self._on_confirm, has_heartbeats=bool(self.host.heartbeat))

    def _on_open(self, connection: pika.SelectConnection) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        self._channels.clear()
        self._open_channel()

    def _open_channel(self) -> None:
        channel = PublisherChannel(
            self._connection,
            self._options,
            write=self._wire.write,
            on_free=self._on_channel_free,
            on_closed=self._on_channel_closed,
        )
        self._channels.append(channel)

    def _on_channel_free(self, channel: PublisherChannel) -> None:
        if not self._is_ready_or_ended.is_set():
            self._note_ready(f"connected to RabbitMQ at {self.address}")
        if channel.nacked:
            # RabbitMQ 3 confirms nothing more for a quorum queue over a channel on which that queue refused a message.
            self._abandon(channel)
        if self._unsent:
            self._call(self._send)
        self._close_if_retired()

    def _on_channel_closed(self, channel: PublisherChannel, error: Exception) -> None:
        if channel not in self._channels:
            self._closing -= 1
            return
        # When the connection ends, pika closes its channels too. That is not about their transmissions.
        if self.error or not self._connection.is_open:
            return
        transmission = channel.transmission
        if transmission is None or not blames_message(error, self._options.exchange):
            self._close(f"RabbitMQ closed the channel: {explain(error)}")
            return
        self._channels.remove(channel)
        text = f"RabbitMQ refused the message: {explain(error)}"
        transmission.refuse(text, error, permanent=not lacks_permission(error))
        self._send()

    def _abandon(self, channel: PublisherChannel) -> None:
        """Close a channel. Its number can be used again only when the broker has closed it too."""
        self._channels.remove(channel)
        channel.close()
        self._closing += 1
        # The broker closes a stalled channel only when the channel moves again.
        if self._closing > MAX_CLOSING:
            self._accept_no_more()

    # Sending

    def _send(self) -> None:
        """Send the waiting transmissions, and the rest of the transmissions in flight, a turn at a time."""
        if self.error or not self._is_ready_or_ended.is_set() or self._blocked_reason is not None:
            return
        for channel in self._channels:
            if self._unsent and channel.is_free:
                channel.take(self._unsent.popleft())
        room = int(self._connection.params.channel_max) - len(self._channels) - self._closing
        if self._unsent and not self._channels and room <= 0:
            self._end(f"RabbitMQ at {self.address} does not close channels")
            self._cut()
            return
        opening = sum(not channel.is_open for channel in self._channels)
        for _ in range(min(len(self._unsent) - opening, room)):
            self._open_channel()
        unfinished = [channel.send(MAX_MESSAGES_PER_TURN) for channel in [*self._channels]]
        if any(unfinished):
            self._call(self._send)
        self._watch()

    def _on_confirm(self, number: int, ack: bool, tags: Sequence[int], multiple: bool) -> None:
        for channel in self._channels:
            if channel.number == number:
                channel.confirm(ack, tags, multiple)
                return

    # Waiting for responses

    @property
    def _seconds_waiting(self) -> float:
        return max((channel.seconds_waiting for channel in self._channels), default=0.0)

    def _watch(self) -> None:
        """Start the timer that detects missing responses; one timer serves all transmissions."""
        if not self._is_watching and not self.error and not all(channel.is_free for channel in self._channels):
            self._is_watching = True
            self._loop.call_later(max(0.0, self._options.stall_timeout - self._seconds_waiting), self._check_responses)

    def _check_responses(self) -> None:
        self._is_watching = False
        if self._blocked_reason is not None:
            # pika ends a connection that stays blocked; a blocked broker owes no response.
            self._restart_clocks()
        elif self._seconds_waiting >= self._options.stall_timeout:
            self._abandon_stalled()
        self._watch()

    def _abandon_stalled(self) -> None:
        """Give back the transmissions that the broker does not confirm, and accept no more.

        A queue without quorum leaves messages unconfirmed, and may stall the whole channel at its first message. After
        about 400 messages behind it, RabbitMQ reads nothing more from the connection, so another one takes over.
        """
        self._accept_no_more()
        stalled = [channel for channel in self._channels if channel.seconds_waiting >= self._options.stall_timeout]
        transmissions = [
            *self._unsent,
            *(channel.transmission for channel in stalled if channel.transmission is not None),
        ]
        self._unsent.clear()
        for channel in stalled:
            self._abandon(channel)
        for transmission in transmissions:
            transmission.stall()
        if not self._in_flight:
            self._end(f"RabbitMQ at {self.address} confirms nothing over the connection")
            self._cut()

    # Only newer releases of pika have generic frames, so their types are quoted.
    def _on_blocked(self, _connection: object, frame: "Method[ConnectionMethods.Blocked]") -> None:
        self._blocked_reason = str(frame.method.reason)
        self._log(logging.WARNING, f"RabbitMQ blocks the connection: {self._blocked_reason}", event="broker.blocked")

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self._blocked_reason = None
        self._log(logging.INFO, "RabbitMQ no longer blocks the connection", event="broker.unblocked")
        self._restart_clocks()
        self._send()

    def _restart_clocks(self) -> None:
        for channel in self._channels:
            channel.restart_clock()

    # Ending

    @property
    def _in_flight(self) -> list[Transmission]:
        return [channel.transmission for channel in self._channels if channel.transmission is not None]

    def _close_if_retired(self) -> None:
        if not self.accepts_more and not self.error and not self._unsent and not self._in_flight:
            self._close(REPLACED)

    def _explain_loss(self, error: BaseException) -> str:
        if isinstance(error, ConnectionBlockedTimeout):
            return f"was blocked for {self._options.timeout:g} s: {self._blocked_reason}"
        return super()._explain_loss(error)

    def _release(self, error: str) -> None:
        self._accept_no_more()
        transmissions = [*self._in_flight, *self._unsent]
        self._channels.clear()
        self._unsent.clear()
        # The relay reports an outage, once; an attempt to connect may be one of hundreds.
        self._log(logging.DEBUG, error, event="broker.connection_ended")
        for transmission in transmissions:
            transmission.set_missing(unanswered(error))


class TrialConnection(RabbitMQPublisherConnection):
    def _close(self, error: str) -> None:
        # RabbitMQ would wait for the channels that sick queues have stalled.
        self._end(error)
        self._cut()
