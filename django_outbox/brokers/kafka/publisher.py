"""`KafkaPublisher`: publishes with idempotent producers."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django_outbox.brokers.cloudevents import PLAIN, validate_format
from django_outbox.brokers.kafka.call import KafkaCall
from django_outbox.brokers.kafka.encoding import KafkaEncoder
from django_outbox.brokers.kafka.options import read_config, servers
from django_outbox.brokers.kafka.publisher_connection import ProducerPool
from django_outbox.brokers.options import Template, require_seconds
from django_outbox.brokers.publisher import Publisher
from django_outbox.messages import Message, Outcome
from django_outbox.utils.threads import after_fork


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaPublisher(Publisher):
    """Publishes to topics of Kafka.

    A message is accepted when all in-sync replicas of its partition have it. It is rejected if it is too large, or if
    the broker refuses the record for good. It is deferred if its topic does not exist, or if the user may not write to
    it. If the broker refuses several records together because of one of them, that one must first be found. Messages
    without a response in time are unanswered.

    The record's key is the message's key, so all messages of a key for one topic are in one partition; those without a
    key are spread over all partitions.

    Args:
        alias: the publisher's name in the settings.
        config: a dict of librdkafka's options for the producer, with `bootstrap.servers` and those for TLS and SASL.
            Options that the publisher's promises depend on are refused.
        topic: the topic, in which `{topic}` stands for the message's topic (its type if that is empty), `{type}` for
            its type and `{key}` for its key.
        format: `plain`, or `cloudevents` for CloudEvents with their attributes in headers.
        source: the attribute `source` of CloudEvents, a URI reference.
        timeout: seconds for connecting, and for the brokers to confirm a batch. At most a day.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows a
            password.
    """

    # Idempotence alone does not keep the order of a key within a batch, so the relay publishes one message per key at a
    # time. librdkafka builds a partition's next request while one is in flight, even if only one may be. If the broker
    # refuses that one, its sequence check refuses the next one too, but not if it is the producer's first one for this
    # partition: a broker that knows nothing of a producer accepts any sequence (`checkSequence` in Kafka's
    # ProducerAppendInfo). And messages of a key may go to several topics.
    keeps_order = False
    messaging_system: ClassVar[str] = "kafka"
    broker_name = "Kafka"

    config: Mapping[str, Any] | None = None
    topic: str = "{topic}"
    format: str = PLAIN
    source: str = ""
    timeout: float = 30.0

    def __post_init__(self) -> None:
        require_seconds("timeout", self.timeout)
        validate_format(self.format, self.source)
        self._topic = Template("topic", self.topic)
        self._config = read_config(self.config, self.timeout)
        self._encode = KafkaEncoder(self._topic, self.format, self.source).encode
        self._pool = ProducerPool(self._config)
        # The threads of producers do not exist in the child process.
        after_fork(self._pool, ProducerPool.abandon)

    def describe(self) -> str:
        return f"Kafka at {servers(self._config)}, topic {self.topic!r}"

    def prepare(self) -> str:
        with self._pool.borrow() as producer:
            reason = producer.connect(time.monotonic() + self.timeout)
            if reason:
                producer.discard()
        return reason

    def publish(self, messages: Sequence[Message]) -> Sequence[Outcome]:
        return KafkaCall(messages, self._encode, self._pool, self.timeout).run() if messages else []

    def name_destination(self, message: Message) -> str:
        return self._topic.render(message)

    def close(self) -> None:
        self._pool.close()
