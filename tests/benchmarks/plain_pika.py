"""Two publishers as a developer writes them by hand with pika: one waits for each confirm, one for a batch."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from datetime import timezone
from itertools import count
from typing import Any

import pika
from pika.spec import Basic

from tests.benchmarks.measuring import BenchmarkError

PATIENCE = 60.0
"""Seconds to wait for the broker."""

Row = dict[str, Any]
"""A row of the outbox by the names of its columns."""


class BlockingPublisher:
    """Sends a message, and waits for its confirm before the next."""

    def __init__(self, url: str, exchange: str) -> None:
        self._exchange = exchange
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def submit(self, rows: Sequence[Row]) -> Callable[[], None]:
        """Send rows, and return a function that waits for their confirms."""
        for row in rows:
            send(self._channel, self._exchange, row)
        return lambda: None

    def close(self) -> None:
        self._connection.close()


class BatchPublisher:
    """Sends all rows of a batch at once, over pika's SelectConnection in its own thread."""

    def __init__(self, url: str, exchange: str) -> None:
        self._exchange = exchange
        self._tags = count(1)
        self._unconfirmed: dict[int, Future[None]] = {}
        self._missing: dict[Future[None], int] = {}
        self._ready: Future[None] = Future()
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._on_channel),
            on_open_error_callback=lambda _, error: self._fail(repr(error)),
            on_close_callback=lambda _, reason: self._fail(repr(reason)),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        self._ready.result(PATIENCE)

    def submit(self, rows: Sequence[Row]) -> Callable[[], None]:
        """Send rows, and return a function that waits for their confirms."""
        batch: Future[None] = Future()
        self._connection.ioloop.add_callback_threadsafe(lambda: self._send(rows, batch))
        return lambda: batch.result(PATIENCE)

    def close(self) -> None:
        self._connection.ioloop.add_callback_threadsafe(self._connection.close)
        self._thread.join(PATIENCE)
        self._connection.ioloop.close()

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._fail(repr(reason)))
        channel.add_on_return_callback(lambda *_: self._fail("a message reached no queue"))
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._ready.set_result(None))

    def _send(self, rows: Sequence[Row], batch: "Future[None]") -> None:
        self._missing[batch] = len(rows)
        for row in rows:
            self._unconfirmed[next(self._tags)] = batch
            send(self._channel, self._exchange, row)

    def _on_confirm(self, frame: Any) -> None:
        confirm = frame.method
        if isinstance(confirm, Basic.Nack):
            self._fail("a message was rejected")
            return
        tags = [confirm.delivery_tag]
        if confirm.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= confirm.delivery_tag]
        for batch in [self._unconfirmed.pop(tag) for tag in tags if tag in self._unconfirmed]:
            self._missing[batch] -= 1
            if not self._missing[batch]:
                del self._missing[batch]
                batch.set_result(None)

    def _fail(self, problem: str) -> None:
        for future in (self._ready, *self._missing):
            if not future.done():
                future.set_exception(BenchmarkError(f"The broker: {problem}."))
        self._unconfirmed.clear()
        self._missing.clear()
        if self._connection.is_closed:
            self._connection.ioloop.stop()


def send(channel: Any, exchange: str, row: Row) -> None:
    """Publish a persistent message."""
    properties = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        message_id=str(row["message_id"]),
        timestamp=int(row["occurred_at"].replace(tzinfo=timezone.utc).timestamp()),
        type=row["type"],
    )
    channel.basic_publish(exchange, row["topic"], row["payload"].encode(), properties, mandatory=True)
