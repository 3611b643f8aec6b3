"""One connection to RabbitMQ, and the thread that serves it."""

import copy
import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import pika
from pika.channel import Channel
from pika.exceptions import ConnectionBlockedTimeout
from pika.frame import Method
from pika.spec import Basic, BasicProperties
from pika.spec import Connection as ConnectionMethods

from django_outbox.messages import ACCEPTED, Message, Outcome, not_now, rejected, unanswered
from django_outbox.publishers.rabbitmq_batch import Batch, Unconfirmed
from django_outbox.publishers.rabbitmq_errors import explain, explain_channel, max_message_size
from django_outbox.publishers.rabbitmq_loop import Loop

logger = logging.getLogger("django_outbox")

SLICE = 1000
"""How many messages are sent before confirms and heartbeats get their turn."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the broker has for a clean end of the connection, before it is cut."""

REFUSED = not_now("the broker refused the message for now (basic.nack): a queue is full, or could not store it")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """What a connection is made of; times are in seconds."""

    alias: str
    hosts: tuple[pika.URLParameters, ...]
    exchange: str
    declare_exchange: str | None
    mandatory: bool
    confirms: bool
    timeout: float
    blocked_timeout: float


class RabbitMQConnection:
    """One life of a connection: it connects, sends batches and ends; after that a new one has to be made.

    A thread of its own serves it, so that confirms, heartbeats and the broker's `connection.blocked` are read whatever
    the callers do meanwhile. All that is known of the channel ends with the object: a late confirm finds nothing.
    What begins with an underscore runs in that thread; the rest may be called from any.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._over = False
        self._unsent: deque[Batch] = deque()
        self._unconfirmed = Unconfirmed()
        self._ready = False
        self._blocked: str | None = None
        self._watching = False
        first = random.randrange(len(options.hosts))  # noqa: S311 (spreads load, hides nothing)
        self._hosts = deque(options.hosts[first:] + options.hosts[:first])
        self._failures: list[str] = []
        self._loop = Loop()
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
            parameters, self._on_open, self._on_open_error, self._on_close, custom_ioloop=self._loop
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
        self._channel = connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._on_channel_close)
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
        self._ready = True
        logger.info("Publisher %s: connected to RabbitMQ at %s", self._options.alias, self._address)
        self._send()

    # Sending

    def _send(self) -> None:
        if not self._ready or self._over or self._blocked is not None:
            return
        budget = SLICE
        while self._unsent and budget:
            batch = self._unsent[0]
            stop = min(batch.sent + budget, len(batch.messages))
            budget -= stop - batch.sent
            self._send_part(batch, stop)
            if stop == len(batch.messages):
                self._unsent.popleft()
        if budget < SLICE and not self._options.confirms:
            self._ask_whether_read()
        if self._unsent:
            self._loop.add_callback_threadsafe(self._send)
        self._watch()

    def _send_part(self, batch: Batch, stop: int) -> None:
        publish, exchange, mandatory = self._channel.basic_publish, self._options.exchange, self._options.mandatory
        frame_max = self._connection.params.frame_max
        sent = []
        for index in range(batch.sent, stop):
            properties = batch.properties[index]
            if properties is None:
                continue
            if properties.frame_size > frame_max:
                too_large = f"the headers make a frame of {properties.frame_size:,} bytes in AMQP"
                batch.answer(index, rejected(f"{too_large}; the frame_max agreed with the broker is {frame_max:,}."))
                continue
            message = batch.messages[index]
            publish(exchange, message.destination, message.payload, properties, mandatory)
            sent.append(index)
        batch.sent = stop
        self._unconfirmed.add(batch, sent)

    def _ask_whether_read(self) -> None:
        """Without confirms: any call with an answer tells that the broker has read what was sent before it."""
        sent = self._unconfirmed.last_tag
        self._channel.basic_qos(callback=lambda _frame: self._unconfirmed.confirm(sent, ACCEPTED, multiple=True))

    # Answers (frames are generic only in newer releases of pika, so their types are quoted)

    def _on_confirm(self, frame: "Method[Basic.Ack | Basic.Nack]") -> None:
        confirm = frame.method
        outcome = ACCEPTED if isinstance(confirm, Basic.Ack) else REFUSED
        self._unconfirmed.confirm(confirm.delivery_tag, outcome, multiple=confirm.multiple)

    def _on_return(self, _channel: Channel, method: Basic.Return, properties: BasicProperties, _body: bytes) -> None:
        error = (
            f"unroutable: {method.reply_code} {method.reply_text}, exchange {method.exchange!r}, "
            f"routing key {method.routing_key!r}; bind a queue, or set mandatory=False"
        )
        self._unconfirmed.note_return(str(properties.message_id), rejected(error))

    # Waiting

    def _watch(self) -> None:
        """Have a silence noticed: one timer for all batches."""
        if self._unconfirmed.batches and not self._watching and not self._over:
            self._watching = True
            self._loop.call_later(max(0.0, self._options.timeout - self._unconfirmed.silence()), self._on_silence)

    def _on_silence(self) -> None:
        self._watching = False
        timeout = self._options.timeout
        if self._blocked is not None:
            # pika ends a connection that stays blocked; only afterwards is a silence one.
            self._unconfirmed.touch()
        elif self._unconfirmed.silence() >= timeout:
            self._finish(f"RabbitMQ at {self._address} has not answered for {timeout:g} seconds")
            self._cut()
        self._watch()

    def _on_blocked(self, _connection: object, frame: "Method[ConnectionMethods.Blocked]") -> None:
        self._blocked = str(frame.method.reason)
        logger.warning("Publisher %s: RabbitMQ blocks the connection: %s", self._options.alias, self._blocked)

    def _on_unblocked(self, _connection: object, _frame: object) -> None:
        self._blocked = None
        logger.info("Publisher %s: RabbitMQ blocks the connection no longer", self._options.alias)
        self._unconfirmed.touch()
        self._send()

    # The end

    def _on_channel_close(self, _channel: Channel, error: Exception) -> None:
        if self._over or not self._connection.is_open:
            return
        reason = unanswered(f"RabbitMQ closed the channel: {explain_channel(error)}")
        limit = max_message_size(error)
        if limit is None:
            self._finish(reason.error)
        else:
            too_large = rejected(f"the payload is beyond the broker's max_message_size of {limit:,} bytes")
            self._finish(reason.error, lambda message: too_large if len(message.payload) > limit else reason)
        self._close()

    def _on_close(self, _connection: pika.SelectConnection, error: BaseException) -> None:
        if isinstance(error, ConnectionBlockedTimeout):
            reason = f"was blocked for {self._options.blocked_timeout:g} seconds: {self._blocked}"
        else:
            reason = f"was lost: {explain(error)}"
        self._finish(f"the connection to RabbitMQ at {self._address} {reason}")
        self._loop.stop()

    def _finish(self, error: str, outcome_of: Callable[[Message], Outcome] | None = None) -> None:
        """Take no more batches and answer all that is unanswered; only the first call counts."""
        with self._lock:
            if self._over:
                return
            self._over = True
        outcome = unanswered(error)
        batches = dict.fromkeys([*self._unconfirmed.batches, *self._unsent])
        self._unconfirmed = Unconfirmed()
        self._unsent.clear()
        logger.log(logging.WARNING if batches else logging.INFO, "Publisher %s: %s", self._options.alias, error)
        for batch in batches:
            batch.answer_rest(outcome_of or (lambda _message: outcome))

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
