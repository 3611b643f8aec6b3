"""A publisher as a developer writes it by hand with pika."""

from collections.abc import Callable, Sequence
from datetime import timezone
from typing import Any

import pika
from pika.spec import Basic

from tests.benchmarks.measuring import BenchmarkError

Row = dict[str, Any]
"""A row of the outbox by the names of its columns."""


class PlainPublisher:
    """Sends rows, and can wait for their confirms: meanwhile pika's loop runs."""

    def __init__(self, url: str, exchange: str) -> None:
        self._exchange = exchange
        self._sent = 0
        self._unconfirmed: dict[int, None] = {}
        """Delivery tags in their order."""
        self._awaited = 0
        self._error = ""
        self._connection: Any = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._on_channel),
            on_open_error_callback=lambda _, error: self._stop(repr(error)),
            on_close_callback=lambda _, reason: self._stop(repr(reason)),
        )
        self._run()

    def submit(self, rows: Sequence[Row]) -> Callable[[], None]:
        """Send rows, and return a function that waits for their confirms."""
        for row in rows:
            self._sent += 1
            self._unconfirmed[self._sent] = None
            send(self._channel, self._exchange, row)
        last = self._sent
        return lambda: self._wait(last)

    def close(self) -> None:
        self._connection.close()
        self._connection.ioloop.start()

    def _wait(self, tag: int) -> None:
        self._awaited = tag
        if self._is_waiting():
            self._run()

    def _is_waiting(self) -> bool:
        return next(iter(self._unconfirmed), self._awaited + 1) <= self._awaited

    def _run(self) -> None:
        self._connection.ioloop.start()
        if self._error:
            raise BenchmarkError(f"The broker: {self._error}.")

    def _stop(self, error: str = "") -> None:
        self._error = error
        self._connection.ioloop.stop()

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_return_callback(lambda *_: self._stop("a message reached no queue"))
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._stop())

    def _on_confirm(self, frame: Any) -> None:
        confirm = frame.method
        if isinstance(confirm, Basic.Nack):
            self._stop("a message was rejected")
            return
        if confirm.multiple:
            while self._unconfirmed and (tag := next(iter(self._unconfirmed))) <= confirm.delivery_tag:
                del self._unconfirmed[tag]
        else:
            del self._unconfirmed[confirm.delivery_tag]
        if not self._is_waiting():
            self._stop()


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
