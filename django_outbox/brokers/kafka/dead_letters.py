"""Send rejected records to a topic of dead letters, because Kafka has none of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Message

from django_outbox.brokers.kafka.client import Client
from django_outbox.brokers.kafka.delivery import Delivery
from django_outbox.brokers.kafka.encoding import Headers, Record
from django_outbox.brokers.kafka.options import read_config
from django_outbox.brokers.kafka.pool import Pool
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import ACCEPTED

MAX_BYTES = 1_000_000_000
"""The maximum of librdkafka for `message.max.bytes`."""

ORIGIN = "outbox-rejected-from"
"""Header that names the record's topic, partition and offset."""


class DeadLetters:
    """Writes records to a topic.

    Args:
        topic: the topic.
        config: librdkafka's options.
        timeout: seconds that writing may take.
    """

    def __init__(self, topic: str, config: Mapping[str, Any], timeout: float) -> None:
        self._topic = topic
        self._timeout = timeout
        # The broker decides what is too large: the record was within the limits of its own topic.
        self._config = read_config({"message.max.bytes": MAX_BYTES, **config}, timeout)
        self._pool = Pool(lambda: Client(self._config))

    def write(self, records: Sequence[Message]) -> str:
        """Write records with their keys and headers. Return the reason if not all were confirmed."""
        try:
            outcomes = Delivery(records, self._encode, self._pool, self._timeout).run()
        except BatchRefused as error:
            return str(error)
        return next((outcome.error for outcome in outcomes if outcome is not ACCEPTED), "")

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _encode(self, record: Message) -> Record:
        pairs: Any = record.headers() or []
        origin = f"{record.topic()}/{record.partition()}/{record.offset()}"
        headers: Headers = [*pairs, (ORIGIN, origin)]
        return (self._topic, record.value(), record.key(), headers)
