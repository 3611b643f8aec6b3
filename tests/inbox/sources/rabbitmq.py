"""A queue of RabbitMQ."""

from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pika
from django.conf import settings

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from tests.inbox.sources.base import Sent, Source
from tests.support.rabbitmq.tools import Broker, broker_url


class Dead(NamedTuple):
    """A dead letter."""

    message_id: str
    body: bytes


class RabbitMQSource(Source):
    """A queue whose dead letters go to another one.

    Args:
        kind: the queue's type.
    """

    backend = "django_outbox.brokers.rabbitmq.RabbitMQConsumer"

    def __init__(self, kind: str = "classic") -> None:
        self.broker = Broker()
        self.dead_letters = self.broker.queue()
        self.name = self.broker.queue(kind, dead_letter_exchange="", dead_letter_routing_key=self.dead_letters)
        self.port = urlsplit(str(settings.AMQP_URL)).port or 5672

    @property
    def options(self) -> dict[str, Any]:
        return {"url": settings.AMQP_URL, "queue": self.name}

    def make_publisher(self) -> RabbitMQPublisher:
        return RabbitMQPublisher("shop", url=settings.AMQP_URL)

    def at(self, port: int) -> dict[str, Any]:
        return {"url": broker_url(port=port)}

    def _put(self, messages: Sequence[Sent]) -> None:
        for each in messages:
            properties = {
                "message_id": each.message_id or None,
                "type": each.type or None,
                "headers": {**each.headers, "outbox-key": each.key} if each.key else each.headers,
                "delivery_mode": 2,
                **each.properties,
            }
            self.broker.channel.basic_publish("", self.name, each.body, pika.BasicProperties(**properties))

    def unsettled(self) -> int:
        return self.broker.depth(self.name)

    def take_dead(self) -> list[Dead]:
        """Take the dead letters that have arrived since the last call."""
        return [Dead(str(each.properties.message_id), each.body) for each in self.broker.take(self.dead_letters)]

    def close(self) -> None:
        self.broker.__exit__()
