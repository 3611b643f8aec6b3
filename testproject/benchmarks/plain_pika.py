"""Two publishers as one writes them by hand over pika: one that waits for each confirm, one that waits for a batch."""

import threading
from collections.abc import Callable, Sequence
from datetime import timezone
from typing import Any, Protocol

import pika
from django.core.management.base import CommandError
from pika.channel import Channel
from pika.frame import Method
from pika.spec import Basic

PATIENCE = 60.0
"""Seconds to wait for the broker."""

Row = dict[str, Any]
"""A row of the outbox by the names of its columns."""

Wait = Callable[[], None]


class PlainPublisher(Protocol):
    """What hands rows to the broker."""

    def submit(self, rows: Sequence[Row]) -> Wait:
        """Send rows and return what waits for their confirms."""

    def close(self) -> None:
        """Close the connection."""


class BlockingPublisher:
    """Sends a message, and waits for its confirm before the next.

    Args:
        url: the broker's.
        exchange: where to.
    """

    def __init__(self, url: str, exchange: str) -> None:
        self._exchange = exchange
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()

    def submit(self, rows: Sequence[Row]) -> Wait:
        for row in rows:
            self._channel.basic_publish(
                self._exchange, row["topic"], row["payload"].encode(), make_properties(row), mandatory=True
            )
        return lambda: None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class BatchPublisher:
    """Sends all rows of a batch at once, over pika's SelectConnection in a thread of its own.

    Args:
        url: the broker's.
        exchange: where to.

    Raises:
        CommandError: the connection was not made, or was lost.
    """

    def __init__(self, url: str, exchange: str) -> None:
        self._exchange = exchange
        self._channel: Channel
        self._ready = threading.Event()
        self._problem = ""
        self._tag = 0
        self._unconfirmed: dict[int, _Batch] = {}
        self._connection = pika.SelectConnection(
            pika.URLParameters(url),
            on_open_callback=lambda connection: connection.channel(on_open_callback=self._on_channel),
            on_open_error_callback=lambda _, error: self._fail(repr(error)),
            on_close_callback=lambda _, reason: self._fail(repr(reason)),
        )
        self._thread = threading.Thread(target=self._connection.ioloop.start, daemon=True)
        self._thread.start()
        self._await(self._ready)

    def submit(self, rows: Sequence[Row]) -> Wait:
        batch = _Batch(rows)
        self._connection.ioloop.add_callback_threadsafe(lambda: self._send(batch))
        return lambda: self._await(batch.confirmed)

    def close(self) -> None:
        """Close the connection."""
        self._connection.ioloop.add_callback_threadsafe(self._connection.close)
        self._thread.join(PATIENCE)
        self._connection.ioloop.close()

    def _on_channel(self, channel: Channel) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._fail(repr(reason)))
        channel.add_on_return_callback(lambda *_: self._fail("a message reached no queue"))
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._ready.set())

    def _send(self, batch: "_Batch") -> None:
        for row in batch.rows:
            self._tag += 1
            self._unconfirmed[self._tag] = batch
            self._channel.basic_publish(
                self._exchange, row["topic"], row["payload"].encode(), make_properties(row), mandatory=True
            )

    def _on_confirm(self, frame: "Method[Basic.Ack | Basic.Nack]") -> None:
        confirm = frame.method
        if isinstance(confirm, Basic.Nack):
            self._fail("a message was refused")
        tags = [confirm.delivery_tag]
        if confirm.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= confirm.delivery_tag]
        for tag in tags:
            self._unconfirmed.pop(tag).confirm_one()

    def _await(self, event: threading.Event) -> None:
        if not event.wait(PATIENCE):
            self._problem = self._problem or "it is silent"
        if self._problem:
            raise CommandError(f"The broker: {self._problem}.")

    def _fail(self, problem: str) -> None:
        self._problem = self._problem or problem
        self._ready.set()
        for batch in self._unconfirmed.values():
            batch.confirmed.set()
        if self._connection.is_closed:
            self._connection.ioloop.stop()


class _Batch:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.confirmed = threading.Event()
        self._missing = len(rows)

    def confirm_one(self) -> None:
        self._missing -= 1
        if not self._missing:
            self.confirmed.set()


def make_properties(row: Row) -> pika.BasicProperties:
    """Return the properties of a persistent message."""
    return pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        delivery_mode=2,
        message_id=str(row["message_id"]),
        timestamp=int(row["occurred_at"].replace(tzinfo=timezone.utc).timestamp()),
        type=row["type"],
    )
