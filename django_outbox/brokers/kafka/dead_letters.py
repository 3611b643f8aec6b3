"""The topic to which a consumer writes rejected records."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Message as Received
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.kafka.call import KafkaCall
from django_outbox.brokers.kafka.encoding import Headers, Record
from django_outbox.brokers.kafka.options import TOPIC, read_config
from django_outbox.brokers.kafka.publisher_connection import ProducerPool
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import ACCEPTED

MAX_BYTES = 1_000_000_000
"""The maximum of librdkafka for `message.max.bytes`. The broker decides what is too large: a record was within the
limits of its own topic."""

ORIGIN = "outbox-rejected-from"
"""Header that names the record's topic, partition and offset."""


class DeadLetters:
    """Writes records with their keys and headers.

    Args:
        timeout: seconds for writing a batch.
    """

    def __init__(self, topic: object, config: Mapping[str, Any], timeout: float) -> None:
        if not isinstance(topic, str) or topic.startswith("^") or not TOPIC.fullmatch(topic):
            raise ImproperlyConfigured(f"dead_letters is {topic!r}; it must be the name of a topic.")
        self._topic = topic
        self._timeout = timeout
        self._pool = ProducerPool(read_config({"message.max.bytes": MAX_BYTES, **config}, timeout))

    def write(self, records: Sequence[Received]) -> str:
        """Write records. Return the reason if not all were confirmed."""
        try:
            outcomes = KafkaCall(records, self._encode, self._pool, self._timeout).run()
        except BatchRefused as error:
            return str(error)
        return next((outcome.error for outcome in outcomes if outcome is not ACCEPTED), "")

    def close(self) -> None:
        self._pool.close()

    def _encode(self, record: Received) -> Record:
        pairs: Any = record.headers() or []
        origin = f"{record.topic()}/{record.partition()}/{record.offset()}"
        headers: Headers = [*pairs, (ORIGIN, origin)]
        return (self._topic, record.value(), record.key(), headers)
