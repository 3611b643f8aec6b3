"""The broker's limit: messages encoded in advance, written to bare sockets, and confirmed; no database."""

import json
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from typing import NamedTuple

import pika
from pika.frame import Body, Header, Method
from pika.spec import Basic

from django_outbox import OutboxMessage
from tests.benchmarks.measuring import BenchmarkError
from tests.benchmarks.queues import Queues
from tests.benchmarks.raw_amqp import CHANNEL, RawConnection

BLOCK = 100
"""Messages that are written to the socket in one piece."""

FRAME_MAX = 131_072
"""RabbitMQ's default."""

CONFIRM = struct.Struct(">BHIHHQBB")
"""A frame with a confirm: type, channel, size, class, method, delivery tag, whether multiple, end."""


class Block(NamedTuple):
    """The frames of some messages."""

    data: bytes
    messages: int


def encode_blocks(exchange: str, messages: Iterable[OutboxMessage]) -> list[Block]:
    """Return messages for an exchange in blocks, with the properties that the outbox sets."""
    left = iter(messages)
    blocks = iter(lambda: [b"".join(_frames(exchange, message)) for message in islice(left, BLOCK)], [])
    return [Block(b"".join(block), len(block)) for block in blocks]


def measure_limit(url: str, queues: Queues, blocks: Sequence[Block], *, connections: int, window: int) -> float:
    """Send blocks over several connections, with at most `window` unconfirmed messages each; return the rate."""
    queues.purge()
    with ExitStack() as stack:
        senders = []
        for number in range(connections):
            connection = stack.enter_context(closing(RawConnection(url)))
            senders.append(_Sender(connection, blocks[number::connections], window))
        pool = stack.enter_context(ThreadPoolExecutor(connections))
        start = time.perf_counter()
        for done in [pool.submit(sender.run) for sender in senders]:
            done.result()
        seconds = time.perf_counter() - start
    count = sum(block.messages for block in blocks)
    queues.expect(count)
    return count / seconds


class _Sender:
    """Sends blocks over one connection, as fast as the window permits."""

    def __init__(self, connection: RawConnection, blocks: Sequence[Block], window: int) -> None:
        self._socket = connection.socket
        self._blocks = blocks
        self._confirms = Confirms(sum(block.messages for block in blocks))
        self._window = window

    def run(self) -> None:
        sent = 0
        for data, count in self._blocks:
            sent += count
            while sent - self._confirms.count > max(self._window, count):
                self._read()
            self._socket.sendall(data)
        while self._confirms.count < sent:
            self._read()

    def _read(self) -> None:
        data = self._socket.recv(262_144)
        if not data:
            raise BenchmarkError("The broker closed the connection.")
        self._confirms.feed(data)


class Confirms:
    """Counts confirmed messages. Confirms come in any order, for one message or for all up to one."""

    def __init__(self, total: int) -> None:
        self.count = 0
        self._lowest = 1
        self._seen = bytearray(total + 1)
        self._rest = b""

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        whole = len(data) - len(data) % CONFIRM.size
        self._rest = data[whole:]
        for _, _, _, cls, method, tag, multiple, _ in CONFIRM.iter_unpack(data[:whole]):
            # Any other frame has another length; nothing after it is read, because the measurement has failed.
            if cls != Basic.INDEX or method != Basic.Ack.INDEX & 0xFFFF:
                raise BenchmarkError(f"The broker did not accept a message: {data[:whole]!r:.300}")
            if multiple:
                stop = max(self._lowest, tag + 1)
                self.count += self._seen.count(0, self._lowest, stop)
                self._seen[self._lowest : stop] = b"\1" * (stop - self._lowest)
                self._lowest = stop
            elif not self._seen[tag]:
                self._seen[tag] = 1
                self.count += 1


def _frames(exchange: str, message: OutboxMessage) -> Iterator[bytes]:
    payload = json.dumps(message.payload).encode()
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={"outbox-key": message.key} if message.key else {},
        delivery_mode=2,
        message_id=str(message.message_id),
        timestamp=int(time.time()),
        type=message.type,
    )
    yield Method(CHANNEL, Basic.Publish(exchange=exchange, routing_key=message.topic, mandatory=True)).marshal()
    yield Header(CHANNEL, len(payload), properties).marshal()
    for start in range(0, len(payload), FRAME_MAX - 8):
        yield Body(CHANNEL, payload[start : start + FRAME_MAX - 8]).marshal()
