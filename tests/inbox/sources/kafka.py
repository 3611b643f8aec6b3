"""A topic of Kafka."""

from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from django_outbox.brokers.text_headers import KEY, MESSAGE_ID, TYPE
from tests.inbox.sources.base import Dead, Sent, Source
from tests.publishers.subjects.base import unique_name
from tests.support.kafka.cluster import KafkaCluster
from tests.support.kafka.tools import PATIENCE, read_topic

GROUP = "billing"

SENT_AT = 1_700_000_000_000

QUICK = {"session.timeout.ms": 1500, "heartbeat.interval.ms": 100, "fetch.wait.max.ms": 50}
"""The messages of a dead member are taken over soon."""


class KafkaSource(Source):
    """A topic on a broker of its own, and a topic for the dead letters.

    Args:
        partitions: how many the topic has.
    """

    backend = "django_outbox.brokers.kafka.KafkaConsumer"

    def __init__(self, partitions: int = 1) -> None:
        self.cluster = KafkaCluster(1)
        self.partitions = partitions
        self.port = int(self.cluster.servers.rpartition(":")[2])
        self.name, self.dead_letters = unique_name(), unique_name()
        self.cluster.create_topic(self.name, partitions)
        self.cluster.create_topic(self.dead_letters, 1)
        self._dead_positions: dict[int, int] = {}
        self._producer = Producer({"bootstrap.servers": self.cluster.servers, "linger.ms": 0})
        self._reader = Consumer({"bootstrap.servers": self.cluster.servers, "group.id": GROUP})

    @property
    def options(self) -> dict[str, Any]:
        return {
            "config": {"bootstrap.servers": self.cluster.servers, **QUICK},
            "group": GROUP,
            "topics": self.name,
            "dead_letters": self.dead_letters,
        }

    def via(self, port: int) -> dict[str, Any]:
        self.cluster.advertise(1, port)
        return {"config": {"bootstrap.servers": f"127.0.0.1:{port}", **QUICK}, "timeout": 2.0}

    def put(self, messages: Sequence[Sent]) -> None:
        for each in messages:
            known = {MESSAGE_ID: each.message_id, TYPE: each.type, KEY: each.key}
            headers = [(name, text) for name, text in [*known.items(), *each.headers.items()] if text]
            # A record always has a time. One that is sent again has the same.
            fields = {"timestamp": 0 if each.message_id else SENT_AT, **each.properties}
            self._producer.produce(self.name, each.body, each.key or None, headers=headers, **fields)
        assert not self._producer.flush(PATIENCE)

    def unsettled(self) -> int:
        partitions = [TopicPartition(self.name, number) for number in range(self.partitions)]
        count = 0
        for each in self._reader.committed(partitions, timeout=PATIENCE):
            _, high = self._reader.get_watermark_offsets(each, timeout=PATIENCE)
            count += high - max(each.offset, 0)
        return count

    def take_dead(self) -> list[Dead]:
        records = read_topic(self.cluster.servers, self.dead_letters, self._dead_positions)
        return [Dead(dict(record.headers())[MESSAGE_ID].decode(), record.value()) for record in records]

    def close(self) -> None:
        self._reader.close()
        del self._reader, self._producer
        self.cluster.close()
