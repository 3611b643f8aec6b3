"""The publisher for Kafka."""

from collections.abc import Sequence
from typing import Any

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.brokers.text_headers import KEY, MESSAGE_ID, TYPE
from django_outbox.messages import Message
from tests.publishers.subjects.base import BrokerSubject, Received, unique_name
from tests.support.claimed import make_message
from tests.support.kafka.cluster import kafka_cluster
from tests.support.kafka.tools import read_topic


class KafkaSubject(BrokerSubject):
    # The brokers' limit of 1,048,588 bytes is that of a batch of records, with their headers.
    largest = 1_040_000
    order = False

    def __init__(self) -> None:
        super().__init__()
        self._cluster = kafka_cluster()
        self.topic = unique_name()
        self._cluster.create_topic(self.topic)
        self._positions: dict[int, int] = {}
        self._is_down = False

    def make(self, **options: Any) -> KafkaPublisher:
        return KafkaPublisher("default", config={"bootstrap.servers": self._cluster.servers}, **options)

    def with_secret(self) -> KafkaPublisher:
        config = {
            "bootstrap.servers": self._cluster.servers,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "shop",
            "sasl.password": self.secret,
        }
        return KafkaPublisher("default", config=config, timeout=2.0)

    def received(self) -> Sequence[Received]:
        return [_read(each) for each in read_topic(self._cluster.servers, self.topic, self._positions)]

    def go_down(self) -> None:
        self._is_down = True
        self._cluster.go_down()

    def come_back(self) -> None:
        self._cluster.come_back()

    def poison(self) -> Message:
        return make_message(self.topic, b'"' + b"x" * 1_100_000 + b'"')

    def close(self) -> None:
        if self._is_down:
            self._cluster.come_back()
        super().close()


def _read(record: Any) -> Received:
    headers = {name: value.decode() for name, value in record.headers()}
    key = record.key().decode() if record.key() else ""
    assert headers.pop(KEY, "") == key
    return Received(headers.pop(MESSAGE_ID), record.value(), headers.pop(TYPE), key, headers)
