"""A topic of Kafka."""

from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.brokers.text_headers import KEY, MESSAGE_ID, TYPE
from tests.inbox.sources.base import Sent, Source
from tests.publishers.subjects.base import unique_name
from tests.support.kafka.gateway import Gateway
from tests.support.kafka.mock import MockCluster
from tests.support.kafka.shared import kafka_servers
from tests.support.kafka.tools import PATIENCE, create_topic, delete_topics, find_offsets, write_records
from tests.support.proxies import Proxies

SENT_AT = 1_700_000_000_000

QUICK = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}
"""The messages of a dead member are taken over soon. With a shorter session, a member loses its partitions whenever the
machine gives it no time, and joins again."""


class KafkaSource(Source):
    """A topic and a consumer group.

    Args:
        partitions: how many the topic has.
        servers: the addresses of brokers; by default those of the cluster that the tests share.
    """

    backend = "django_outbox.brokers.kafka.KafkaConsumer"
    has_text_headers = True

    def __init__(self, partitions: int = 1, servers: str = "") -> None:
        self.servers = servers or kafka_servers()
        self.partitions = partitions
        self.group = unique_name()
        self.name = create_topic(self.servers, unique_name(), partitions)
        self._gateway: Gateway | None = None
        self.producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        self._reader = Consumer({"bootstrap.servers": self.servers, "group.id": self.group})

    @property
    def gateway(self) -> Gateway:
        """Ways to the brokers that can be interrupted."""
        self._gateway = self._gateway or Gateway(self.servers)
        return self._gateway

    @property
    def options(self) -> dict[str, Any]:
        return {
            "config": {"bootstrap.servers": self.servers, **QUICK},
            "group": self.group,
            "topics": self.name,
        }

    def make_publisher(self) -> KafkaPublisher:
        return KafkaPublisher("shop", config={"bootstrap.servers": self.servers})

    def at(self, port: int) -> dict[str, Any]:
        return self._options_at(f"127.0.0.1:{port}")

    def through(self, proxies: Proxies) -> tuple[dict[str, Any], Callable[[], None]]:
        return self._options_at(self.gateway.servers), self.gateway.cut

    def _options_at(self, servers: str) -> dict[str, Any]:
        return {"config": {"bootstrap.servers": servers, **QUICK}, "timeout": 2.0}

    def _put(self, messages: Sequence[Sent]) -> None:
        write_records(self.producer, self.name, self.partitions, [*map(_record_of, messages)])

    def write(self, *records: dict[str, Any]) -> None:
        """Write records, which are arguments of `produce`."""
        self.sent += len(records)
        write_records(self.producer, self.name, self.partitions, records)

    def unsettled(self) -> int:
        partitions = [TopicPartition(self.name, number) for number in range(self.partitions)]
        count = 0
        for each in self._reader.committed(partitions, timeout=PATIENCE):
            _, high = find_offsets(self._reader, each)
            count += high - max(each.offset, 0)
        return count

    def close(self) -> None:
        if self._gateway:
            self._gateway.close()
        self._reader.close()
        del self._reader, self.producer
        delete_topics(self.servers, self.name)


def _record_of(message: Sent) -> dict[str, Any]:
    known = {MESSAGE_ID: message.message_id, TYPE: message.type, KEY: message.key}
    headers = [(name, text) for name, text in [*known.items(), *message.headers.items()] if text]
    # A record always has a time. One that is sent again has the same.
    timestamp = 0 if message.message_id else SENT_AT
    return {
        "value": message.body,
        "key": message.key or None,
        "headers": headers,
        "timestamp": timestamp,
        **message.properties,
    }


class MockKafkaSource(KafkaSource):
    """The same on a mock, whose broker refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.cluster = MockCluster(1)
        super().__init__(servers=self.cluster.servers)

    def close(self) -> None:
        super().close()
        self.cluster.close()
