"""A consumer, as another service would run it: reads the shop's queue and stores each message once."""

import json
import time
import uuid
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import pika
from django.db import transaction
from django.db.models import F
from pika.adapters.blocking_connection import BlockingChannel

from shop.models import ReceivedMessage

BATCH_SIZE = 500
"""Maximum number of messages stored in one transaction."""

GATHERING_TIME = 0.2
"""Seconds without a message after which an incomplete batch is stored."""


class Delivery(NamedTuple):
    """One delivery of a message. It is acknowledged by its tag."""

    tag: int
    message: ReceivedMessage


@dataclass
class Summary:
    """Number of deliveries, and how many of them were duplicates."""

    received: int = 0
    duplicates: int = 0


class Consumer:
    """Read a durable quorum queue.

    Args:
        url: URL of RabbitMQ, `amqp://user:password@host:5672/vhost`.
        exchange: the topic exchange that the outbox publishes to.
        queue: the queue.
    """

    def __init__(self, url: str, *, exchange: str, queue: str) -> None:
        self.exchange = exchange
        self.queue = queue
        self.summary = Summary()
        self._connection = pika.BlockingConnection(pika.URLParameters(url))
        self._channel: BlockingChannel = self._connection.channel()
        self._stopping = False

    def declare(self) -> None:
        """Declare the exchange and the queue unless they exist."""
        self._channel.exchange_declare(self.exchange, "topic", durable=True)
        self._channel.queue_declare(self.queue, durable=True, arguments={"x-queue-type": "quorum"})

    def bind(self, pattern: str) -> None:
        """Bind the queue to the routing keys that match a pattern, for example `order.*`."""
        self._channel.queue_bind(self.queue, self.exchange, pattern)

    def unbind(self, pattern: str) -> None:
        """Remove a binding."""
        self._channel.queue_unbind(self.queue, self.exchange, pattern)

    def count_waiting(self) -> int:
        """Return the number of messages in the queue that were not delivered to a consumer."""
        waiting: int = self._channel.queue_declare(self.queue, passive=True).method.message_count
        return waiting

    def stop(self) -> None:
        """Make `consume` store the current batch and return. Safe to call in a signal handler."""
        self._stopping = True

    def close(self) -> None:
        """Close the connection. Messages that were not stored go back to the queue."""
        if self._connection.is_open:
            self._connection.close()

    def consume(self, *, max_messages: int | None = None, idle_timeout: float | None = None) -> Summary:
        """Receive and store messages until `stop` is called.

        Args:
            max_messages: stop after this number of deliveries; no limit by default.
            idle_timeout: stop after this many seconds without a message; never by default.
        """
        self._channel.basic_qos(prefetch_count=2 * BATCH_SIZE)
        batch: list[Delivery] = []
        last_arrival = time.monotonic()
        for method, properties, body in self._channel.consume(self.queue, inactivity_timeout=GATHERING_TIME):
            tag = method.delivery_tag if method else None
            if tag is None or properties is None or body is None:
                self._store(batch)
                if idle_timeout is not None and time.monotonic() - last_arrival >= idle_timeout:
                    break
            else:
                last_arrival = time.monotonic()
                batch.append(Delivery(tag, _read(properties, body)))
                if len(batch) == BATCH_SIZE:
                    self._store(batch)
            if self._stopping or self.summary.received + len(batch) == max_messages:
                break
        self._store(batch)
        # Prefetched messages that were not read go back to the queue.
        self._channel.cancel()
        return self.summary

    def _store(self, batch: list[Delivery]) -> None:
        """Store the batch, then acknowledge it. A crash in between causes duplicates and loses nothing."""
        if not batch:
            return
        deliveries = Counter(delivery.message.message_id for delivery in batch)
        with transaction.atomic():
            known = ReceivedMessage.objects.filter(message_id__in=deliveries).count()
            ReceivedMessage.objects.bulk_create([delivery.message for delivery in batch], ignore_conflicts=True)
            for count, ids in _by_count(deliveries).items():
                rows = ReceivedMessage.objects.filter(message_id__in=ids)
                if rows.update(deliveries=F("deliveries") + count) != len(ids):
                    raise RuntimeError("The database did not store every message.")
        self._channel.basic_ack(batch[-1].tag, multiple=True)
        self.summary.received += len(batch)
        self.summary.duplicates += len(batch) - len(deliveries) + known
        batch.clear()


def _by_count(deliveries: "Counter[uuid.UUID]") -> dict[int, list[uuid.UUID]]:
    groups = defaultdict(list)
    for message_id, count in deliveries.items():
        groups[count].append(message_id)
    return groups


def _read(properties: pika.BasicProperties, body: bytes) -> ReceivedMessage:
    headers = properties.headers or {}
    return ReceivedMessage(
        message_id=uuid.UUID(properties.message_id),
        type=properties.type or "",
        key=headers.get("outbox-key", ""),
        payload=json.loads(body),
    )
