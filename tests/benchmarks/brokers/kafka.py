"""Kafka. The limit: an idempotent producer, `acks` of all.

The cluster is the one that KAFKA_URL names, or three brokers that are started for this.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from django_outbox.brokers.text_headers import text_headers
from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import BenchmarkError
from tests.support.jars import KAFKA
from tests.support.kafka.cluster import running_cluster
from tests.support.kafka.shared import is_real, kafka_servers
from tests.support.kafka.tools import create_topic, delete_topics, find_offsets

PATIENCE = 30
"""Seconds to wait for the cluster."""

PARTITIONS = 4

QUIET = {"log_level": 2}


class Kafka(Broker):
    """A topic of four partitions for each topic."""

    label = "Kafka"
    process = "java"

    def create(self) -> str:
        self._stack = ExitStack()
        servers = self._start()
        self._config = {"bootstrap.servers": servers, **QUIET}
        self._consumer = Consumer({**self._config, "group.id": self.name})
        self._stack.callback(self._consumer.close)
        topics = [f"{self.name}.{topic}" for topic in self.topics]
        for topic in topics:
            create_topic(servers, topic, PARTITIONS)
        self._stack.callback(delete_topics, servers, *topics)
        self._partitions = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        self._before = 0
        return str(KAFKA.version)

    def _start(self) -> str:
        """Start the cluster unless it runs, and return its addresses."""
        if is_real():
            return kafka_servers()
        if not KAFKA.is_usable:
            raise BenchmarkError(KAFKA.remedy)
        return self._stack.enter_context(running_cluster()).servers

    def delete(self) -> None:
        self._stack.close()

    def publisher(self, **options: Any) -> dict[str, Any]:
        given = {"config": self._config, "topic": f"{self.name}.{{topic}}"}
        return {"BACKEND": "django_outbox.brokers.kafka.KafkaPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        self._before += self.count()

    def count(self) -> int:
        ends = [find_offsets(self._consumer, each)[1] for each in self._partitions]
        return sum(ends) - self._before

    @contextmanager
    def sender(self, messages: Sequence[Message]) -> Iterator[Callable[[], None]]:
        prepared = [
            (f"{self.name}.{each.destination}", each.payload, each.key or None, dict(text_headers(each)))
            for each in messages
        ]
        confirmed = 0

        def confirm(error: Any, _message: Any) -> None:
            nonlocal confirmed
            if error:
                raise BenchmarkError(f"Kafka refused a message: {error}")
            confirmed += 1

        def send() -> None:
            for topic, payload, key, headers in prepared:
                while True:
                    try:
                        producer.produce(topic, payload, key, headers=dict(headers), on_delivery=confirm)
                        break
                    except BufferError:
                        producer.poll(0.1)
                producer.poll(0)
            while confirmed < len(prepared):
                producer.poll(0.1)

        producer = Producer({**self._config, "enable.idempotence": True, "acks": "all"})
        producer.list_topics(timeout=PATIENCE)
        yield send
