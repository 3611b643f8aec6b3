"""Kafka: librdkafka's mock cluster, in its own process. The limit: an idempotent producer, `acks` of all."""

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
from tests.support.spawning import process, receive

PATIENCE = 30
"""Seconds to wait for the cluster."""

QUIET = {"log_level": 2}


def serve_mock_cluster(pipe: Connection) -> None:
    """Run a cluster of three brokers, which write nothing to the disk, until the other end of the pipe is closed."""
    # Its processor time is found by this name, on Linux.
    with suppress(OSError):
        Path("/proc/self/comm").write_text(Kafka.process)
    producer = Producer({"bootstrap.servers": "mock", "test.mock.num.brokers": 3, **QUIET})
    brokers = producer.list_topics(timeout=PATIENCE).brokers.values()
    pipe.send(",".join(f"{broker.host}:{broker.port}" for broker in brokers))
    pipe.poll(None)


class Kafka(Broker):
    """A topic of four partitions for each topic."""

    label = "Kafka (mock)"
    process = "kafka-mock"

    def create(self) -> str:
        self._stack = ExitStack()
        _, pipe = self._stack.enter_context(process("tests.benchmarks.brokers.kafka.serve_mock_cluster"))
        self._config = {"bootstrap.servers": receive(pipe, PATIENCE), **QUIET}
        self._consumer = Consumer({**self._config, "group.id": self.name, "allow.auto.create.topics": True})
        self._stack.callback(self._consumer.close)
        # The cluster creates a topic when it is asked for it.
        self._partitions = [
            TopicPartition(topic, partition)
            for topic in [f"{self.name}.{each}" for each in self.topics]
            for partition in self._consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        ]
        self._before = 0
        return libversion()[0]

    def delete(self) -> None:
        self._stack.close()

    def publisher(self, **options: Any) -> dict[str, Any]:
        given = {"config": self._config, "topic": f"{self.name}.{{topic}}"}
        return {"BACKEND": "django_outbox.brokers.kafka.KafkaPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        self._before += self.count()

    def count(self) -> int:
        ends = [self._consumer.get_watermark_offsets(each, timeout=PATIENCE)[1] for each in self._partitions]
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
