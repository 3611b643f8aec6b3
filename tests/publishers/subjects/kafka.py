"""The publisher for Kafka."""

from collections.abc import Sequence
from typing import Any

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.brokers.text_headers import KEY, MESSAGE_ID, TYPE
from django_outbox.messages import Message
from tests.publishers.subjects.base import BrokerSubject, Received, unique_name
from tests.support.claimed import make_message
from tests.support.kafka.gateway import Gateway
from tests.support.kafka.shared import kafka_servers
from tests.support.kafka.tools import create_topic, delete_topics, read_topic


class KafkaSubject(BrokerSubject):
    # The brokers' limit of 1,048,588 bytes is that of a batch of records, with their headers.
    largest = 1_040_000
    order = False

    def __init__(self) -> None:
        super().__init__()
        self._servers = kafka_servers()
        self._gateway = Gateway(self._servers)
        self.topic = create_topic(self._servers, unique_name())
        self._positions: dict[int, int] = {}

    def make(self, **options: Any) -> KafkaPublisher:
        return KafkaPublisher("default", config={"bootstrap.servers": self._gateway.servers}, **options)

    def with_secret(self) -> KafkaPublisher:
        config = {
            "bootstrap.servers": self._gateway.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": self.secret,
        }
        return KafkaPublisher("default", config=config, timeout=2.0)

    def received(self) -> Sequence[Received]:
        return [_read(each) for each in read_topic(self._servers, self.topic, self._positions)]

    def go_down(self) -> None:
        self._gateway.go_down()

    def come_back(self) -> None:
        self._gateway.come_back()

    def poison(self) -> Message:
        return make_message(self.topic, b'"' + b"x" * 1_100_000 + b'"')

    def close(self) -> None:
        super().close()
        self._gateway.close()
        delete_topics(self._servers, self.topic)


def _read(record: Any) -> Received:
    headers = {name: value.decode() for name, value in record.headers()}
    key = record.key().decode() if record.key() else ""
    assert headers.pop(KEY, "") == key
    return Received(headers.pop(MESSAGE_ID), record.value(), headers.pop(TYPE), key, headers)
