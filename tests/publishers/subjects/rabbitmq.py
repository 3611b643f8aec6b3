"""The publisher for RabbitMQ."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from django_outbox.brokers.rabbitmq import RabbitMQPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import ProxiedSubject, Received
from tests.support.claimed import make_message
from tests.support.rabbitmq.tools import Broker, broker_url
from tests.support.rabbitmq.tools import Received as Delivered


class RabbitMQSubject(ProxiedSubject):
    def __init__(self) -> None:
        super().__init__(urlsplit(str(settings.AMQP_URL)).port or 5672)
        self._broker = Broker()
        self.topic = self._broker.queue()

    def make(self, **options: Any) -> RabbitMQPublisher:
        return RabbitMQPublisher("default", url=broker_url(port=self.port), **options)

    def with_secret(self) -> RabbitMQPublisher:
        return RabbitMQPublisher("default", url=broker_url(port=self.port, password=self.secret))

    def received(self) -> Sequence[Received]:
        return [_read(each) for each in self._broker.take(self.topic)]

    def poison(self) -> Message:
        return make_message(self.topic, b"2", headers={"n": 2**70 + 1})

    def close(self) -> None:
        super().close()
        self._broker.__exit__()


def _read(delivered: Delivered) -> Received:
    properties = delivered.properties
    headers = dict(properties.headers or {})
    key = headers.pop("outbox-key", "")
    return Received(str(properties.message_id), delivered.body, str(properties.type), str(key), headers)
