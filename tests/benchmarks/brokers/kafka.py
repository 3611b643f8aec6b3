"""Kafka. The limit: an idempotent producer, `acks` of all.

The cluster is the one that KAFKA_URL names, otherwise three brokers if their programs are in the cache, otherwise
librdkafka's mock, in its own process.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition, libversion

from django_outbox.brokers.text_headers import text_headers
from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker
from tests.benchmarks.measuring import BenchmarkError
from tests.support.jars import KAFKA
from tests.support.kafka.cluster import running_cluster
from tests.support.kafka.shared import is_real, kafka_servers
from tests.support.kafka.tools import create_topic, delete_topics, find_offsets
from tests.support.spawning import process, receive

PATIENCE = 30
"""Seconds to wait for the cluster."""

PARTITIONS = 4

MOCK = "kafka-mock"
"""The name of the mock's process."""

QUIET = {"log_level": 2}


def serve_mock_cluster(pipe: Connection) -> None:
    """Run a cluster of three brokers, which write nothing to the disk, until the other end of the pipe is closed."""
    # Its processor time is found by this name, on Linux.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(MOCK)
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, **QUIET})
    brokers = producer.list_topics(timeout=PATIENCE).brokers.values()
    pipe.send(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
    pipe.poll(None)


class Kafka(Broker):
    """A topic of four partitions for each topic."""

    def __init__(self, destinations: int = 4) -> None:
        super().__init__(destinations)
        self.is_real = is_real() or KAFKA.is_usable
        self.label = "Kafka" if self.is_real else "Kafka (mock)"
        self.process = "java" if self.is_real else MOCK

    def create(self) -> str:
        self._stack = ExitStack()
        servers = self._start()
        self._config = {"bootstrap.servers": servers, **QUIET}
        self._consumer = Consumer({**self._config, "group.id": self.name})
        self._stack.callback(self._consumer.close)
        topics = [f"{self.name}.{topic}" for topic in self.topics]
        if self.is_real:
            for topic in topics:
                create_topic(servers, topic, PARTITIONS)
            self._stack.callback(delete_topics, servers, *topics)
        else:
            # The mock creates a topic with four partitions when a producer asks for it; it takes no other request.
            producer = Producer(self._config)
            for topic in topics:
                producer.list_topics(topic, timeout=PATIENCE)
        self._partitions = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        self._before = 0
        return KAFKA.version if self.is_real else libversion()[0]

    def _start(self) -> str:
        """Start the cluster unless it runs, and return its addresses."""
        if is_real():
            return kafka_servers()
        if self.is_real:
            return self._stack.enter_context(running_cluster()).servers
        _, pipe = self._stack.enter_context(process("tests.benchmarks.brokers.kafka.serve_mock_cluster"))
        return str(receive(pipe, PATIENCE))

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
