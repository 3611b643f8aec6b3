"""Quorum queues of RabbitMQ: one is read by the shop's consumer, the other one by the billing service."""

import uuid
from typing import Any

from shop import conf
from shop.consumer import Consumer
from shop.destinations import ORDERS, REPORTS, Destination
from shop.models import ReceivedMessage

IDLE_TIMEOUT = 1.0
"""Seconds without a message after which the queue counts as empty."""


class RabbitMQDestination(Destination):
    """The shop's queue, bound to its exchange."""

    repair_text = f"bind the queue to {REPORTS}"

    def __init__(self) -> None:
        self._consumer = Consumer(conf.BROKER_URL, exchange=conf.EXCHANGE, queue=conf.QUEUE)
        self.name = f"RabbitMQ, exchange {conf.EXCHANGE}, queue {conf.QUEUE}"

    def prepare(self) -> None:
        billing = Consumer(conf.BROKER_URL, exchange=conf.EXCHANGE, queue=conf.BILLING_QUEUE)
        billing.declare()
        billing.bind(ORDERS)
        billing.close()
        self._consumer.declare()
        self._consumer.bind(ORDERS)
        self._consumer.unbind(REPORTS)

    def repair(self) -> None:
        self._consumer.bind(REPORTS)

    def read_arrivals(self) -> list[tuple[uuid.UUID, Any]]:
        self._consumer.consume(idle_timeout=IDLE_TIMEOUT)
        while self._consumer.count_waiting():
            self._consumer.consume(idle_timeout=IDLE_TIMEOUT)
        rows = ReceivedMessage.objects.order_by("id").iterator()
        return [(row.message_id, row.payload) for row in rows for _ in range(row.deliveries)]

    def close(self) -> None:
        self._consumer.close()
