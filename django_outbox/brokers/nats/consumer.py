"""`JetStreamConsumer`: reads a stream through a durable consumer, and settles messages."""

import asyncio
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from django_outbox.brokers.consumer import ConnectedConsumer, ConsumerConnection, Incoming, Intake
from django_outbox.brokers.nats.connection import NatsConnection
from django_outbox.brokers.nats.encoding import (
    ACK,
    IN_PROGRESS,
    NAK,
    TERM,
    NatsDelivery,
    encode_pub,
    read_delivery,
    request_messages,
    status_of,
)
from django_outbox.brokers.nats.errors import NoAnswer, NotUsable, explain
from django_outbox.brokers.nats.options import NANOSECONDS, NatsOptions, require_name
from django_outbox.utils.logs import logger

REQUEST_TIME = 0.5
"""Seconds for which the server answers one request for messages. It cannot be withdrawn, and messages are given back
only after its end."""

CLOSE_TIMEOUT = 5.0
"""Seconds that the server has to read the last acknowledgements."""

POLL_INTERVAL = 0.25
"""Seconds between two questions whether another process has settled its messages."""

FIRST_REQUEST = 100
"""Number of messages in the first request, while their size is not known."""


@dataclass(kw_only=True, eq=False, repr=False)
class JetStreamConsumer(NatsOptions, ConnectedConsumer):
    """Reads a stream through a durable pull consumer. Both must exist.

    Several processes may share a durable consumer: each message is delivered to one of them. A message that a process
    has received and not settled when it dies is redelivered after the durable consumer's `ack_wait`.

    Args:
        stream: the stream to read.
        durable: the name of the durable consumer.
        timeout: seconds until connecting to all servers is given up.
        options: `servers`, `credentials`, `ssl` and `inbox_prefix` as for `JetStreamPublisher`, and the options of
            every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "NATS JetStream"

    stream: str = ""
    durable: str = ""
    timeout: float = 15.0

    def __post_init__(self) -> None:
        ConnectedConsumer.__post_init__(self)
        NatsOptions.__post_init__(self)
        require_name("stream", self.stream)
        require_name("durable", self.durable)

    @property
    def source(self) -> str:
        servers = ", ".join(server.address for server in self.nodes)
        return f"stream {self.stream!r}, consumer {self.durable!r} at {servers}"

    def _make_connection(self) -> "NatsConsumerConnection":
        return NatsConsumerConnection(self)


class NatsConsumerConnection(NatsConnection, ConsumerConnection):
    kind: ClassVar[str] = "consumer"

    def __init__(self, consumer: JetStreamConsumer) -> None:
        super().__init__(consumer)
        self._consumer = consumer
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{consumer.stream}.{consumer.durable}"
        self._name = f"the consumer {consumer.durable!r} of stream {consumer.stream!r}"
        self._max_buffer_bytes = 2 * consumer.batch_bytes
        self.intake = Intake(self._max_buffer_bytes, lambda: self.call(self._changed.set))
        self._ack_wait = 0.0
        self._may_read = False
        self.is_waiting = True
        self._last_tag = 0
        self._unsettled: dict[int, NatsDelivery] = {}
        self._mean_size = 0.0
        self._last_request = 0
        self._replies = b""
        self._expected = 0
        self._thread.start()

    # Any thread

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._may_read:
            self._may_read = True
            self.call(self._changed.set)
        return self.intake.take(max_messages, max_bytes, seconds)

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        self.call(lambda: self._settle([message.tag for message in batch], rejected))

    # The connection's thread

    async def _open(self) -> None:
        await super()._open()
        self._ack_wait = await self._bind()
        logger.info(
            "%(subject)s: reads stream %(stream)r from %(address)s",
            event="broker.connected",
            subject=self._owner,
            address=self._server,
            stream=self._consumer.stream,
        )

    async def _bind(self) -> float:
        """Return the seconds of the durable consumer's `ack_wait`."""
        try:
            config = (await self._read_info())["config"]
        except NoAnswer as error:
            raise NotUsable(f"{self._name}: {error}; correct the options stream and durable") from None
        if config.get("ack_policy") != "explicit" or config.get("max_deliver", -1) > 0 or config.get("headers_only"):
            text = "loses messages: it must have ack_policy explicit, max_deliver -1, and no headers_only"
            raise NotUsable(f"{self._name} {text}")
        ack_wait: float = config.get("ack_wait", 30 * NANOSECONDS) / NANOSECONDS
        return ack_wait

    async def _read_info(self) -> dict[str, Any]:
        found = await self._client.ask(f"CONSUMER.INFO.{self._consumer.stream}.{self._consumer.durable}")
        if "config" not in found:
            # While a consumer is being deleted, the response has neither its information nor an error.
            raise NoAnswer("JetStream: consumer not found")
        return found

    async def _work(self) -> None:
        self._start(self._read())
        await self._wait(self._is_over)
        if self._is_closing:
            await self._finish()

    def _is_over(self) -> bool:
        return self._is_closing or bool(self.error)

    # Receiving

    async def _read(self) -> None:
        await self._wait(lambda: self._may_read or self._is_over())
        if self._is_over():
            return
        self._start(self._keep())
        await self._let_others_finish()
        self.is_waiting = False
        while not self._is_over():
            await self._wait(lambda: self._wanted() > 0 or self._is_over())
            number = self._wanted()
            if number > 0:
                await self._request(number)

    async def _let_others_finish(self) -> None:
        """Wait until messages that another connection has received are settled, or are delivered again.

        Otherwise, later messages would be stored before the messages that a process left when it died.
        """
        # The server's timers are late now and then.
        deadline = time.monotonic() + self._ack_wait + POLL_INTERVAL
        while time.monotonic() < deadline and not self._is_over():
            if not await self._count_unsettled():
                return
            await asyncio.sleep(POLL_INTERVAL)

    def _wanted(self) -> int:
        if self._is_over() or not self.intake.has_room:
            return 0
        # While one batch is stored, the next one arrives.
        prefetch = 2 * self._consumer.batch_size
        room = prefetch - len(self._unsettled)
        # While at least half of them are in hand, a request would be for a few only.
        if room < prefetch / 2:
            return 0
        fitting = int(self._max_buffer_bytes / self._mean_size) if self._mean_size else FIRST_REQUEST
        return max(min(room, fitting), 1)

    async def _request(self, number: int) -> None:
        """Request messages, and wait until all have come or the server answers no more."""
        self._last_request += 1
        self._replies = self._client.inbox + b"%d" % self._last_request
        self._expected = number
        await self._client.write([request_messages(self._next.encode(), self._replies, number, REQUEST_TIME)])
        waiting = self._wait(lambda: not self._expected or self._is_over())
        try:
            await asyncio.wait_for(waiting, REQUEST_TIME + self._options.stall_timeout)
        except asyncio.TimeoutError:
            # The server does not respond to requests for a consumer that does not exist.
            await self._count_unsettled()

    async def _count_unsettled(self) -> int:
        """Return the number of messages in the hands of all processes. An unusable consumer ends the connection."""
        try:
            return int((await self._read_info())["num_ack_pending"])
        except NoAnswer as error:
            self._end(f"{self._name}: {error}")
            return 0

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        if reply.startswith(b"$JS.ACK."):
            self._receive(NatsDelivery(subject, reply, headers or b"", data))
        elif subject == self._replies and headers is not None:
            self._on_status(status_of(headers), headers)

    def _receive(self, delivery: NatsDelivery) -> None:
        self._last_tag += 1
        self._unsettled[self._last_tag] = delivery
        size = len(delivery.body)
        self._mean_size = max(size, 1) if not self._mean_size else 0.9 * self._mean_size + 0.1 * size
        self.intake.put(read_delivery(delivery, self._last_tag))
        self._expected = max(self._expected - 1, 0)
        if not self._expected:
            self._changed.set()

    def _on_status(self, status: int, headers: bytes) -> None:
        """Note the end of a request: https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-37.md."""
        if status not in (404, 408):
            # Another request at once would be refused as well.
            text = headers[:200].split(b"\r\n")[0].decode("ascii", "replace")
            self._end(f"{self._name} refuses requests ({text})")
        self._expected = 0
        self._changed.set()

    # Settling

    def _settle(self, tags: Collection[int], rejected: Collection[int]) -> None:
        if self._is_connected and not self.error:
            # The caller has logged what it rejects.
            pieces = [encode_pub(self._unsettled.pop(tag).reply, TERM if tag in rejected else ACK) for tag in tags]
            self._client.send(pieces)
            self._changed.set()

    async def _keep(self) -> None:
        """Report regularly to the server which messages are in hand, so that it does not deliver them again."""
        while True:
            await asyncio.sleep(self._ack_wait / 4)
            if self._unsettled:
                held = [delivery.reply for delivery in self._unsettled.values()]
                await self._client.write([encode_pub(reply, IN_PROGRESS) for reply in held])

    # Ending

    def _close(self) -> None:
        self._is_closing = True
        self._changed.set()
        self._opening.cancel()

    async def _finish(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            if self._unsettled:
                # Otherwise, messages that are given back would be the answer to the last request.
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wait(lambda: not self._expected), 2 * REQUEST_TIME)
            self._client.close_inbox()
            await asyncio.wait_for(self._give_back(), CLOSE_TIMEOUT)
        except Exception as error:
            logger.info(
                "%(subject)s: the last acknowledgements may be lost: %(reason)s",
                event="consumer.acknowledgements_lost",
                subject=self._owner,
                reason=explain(error),
            )

    async def _give_back(self) -> None:
        await self._client.write([encode_pub(each.reply, NAK) for each in self._unsettled.values()])
        await self._client.flush()

    def _on_denied(self, subject: str) -> None:
        # There is no response to what the user may not publish.
        for needed in (self._next, "$JS.ACK.>"):
            if subject.startswith(needed.lower().removesuffix(">")):
                self._end(f"{self._name}: permit the user to publish to {needed}")

    def _release(self, error: str) -> None:
        super()._release(error)
        self.intake.end(error)
