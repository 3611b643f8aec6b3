"""`KafkaConsumer`: reads topics as a member of a consumer group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from confluent_kafka import Message as Received
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import ConnectedConsumer
from django_outbox.brokers.kafka.call import KafkaCall
from django_outbox.brokers.kafka.options import TOPIC, read_config, read_group_config, read_topics, servers
from django_outbox.brokers.kafka.producers import ProducerPool
from django_outbox.brokers.kafka.records import Headers, Record
from django_outbox.brokers.kafka.session import Session
from django_outbox.brokers.options import require_seconds
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import ACCEPTED

MAX_DEAD_LETTER_BYTES = 1_000_000_000
"""The maximum of librdkafka for `message.max.bytes`."""

ORIGIN = "outbox-rejected-from"
"""Header that names the record's topic, partition and offset."""


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaConsumer(ConnectedConsumer[Session]):
    """Reads topics as a member of a consumer group. The offsets are committed after the database's commit.

    Args:
        alias: the consumer's name in the settings.
        config: a dict of librdkafka's options for the consumer, with `bootstrap.servers` and those for TLS and SASL.
        group: the consumer group.
        topics: a topic, a pattern of topics, which begins with `^`, or a list of them. They must exist.
        dead_letters: the topic for rejected messages. Kafka has no dead letters of its own, so `unknown_types` and
            `invalid` can be `reject` only with this option.
        timeout: seconds until connecting, or writing a dead letter, is given up.
        options: the options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "Kafka"

    config: Mapping[str, Any]
    group: str
    topics: str | Sequence[str]
    dead_letters: str = ""
    timeout: float = 15.0
    _dead_letters: "DeadLetters | None" = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_seconds("timeout", self.timeout)
        self._topics = read_topics(self.topics)
        self._config = read_group_config(self.config, self.group)
        self.require_dead_letters(self.dead_letters, "a topic")
        if self.dead_letters != "":
            self._dead_letters = DeadLetters(self.dead_letters, self.config, self.timeout)

    @property
    def source(self) -> str:
        return f"topics {', '.join(self._topics)!r} as group {self.group!r} at {servers(self._config)}"

    def _make_connection(self, max_messages: int | None) -> Session:
        return Session(self._config, self._topics, self.timeout, self._write_dead)

    def close(self) -> None:
        super().close()
        if self._dead_letters is not None:
            self._dead_letters.close()

    def _write_dead(self, records: Sequence[Received]) -> str:
        # A message that is too large to be stored is dropped without dead letters; the caller has logged that.
        return "" if self._dead_letters is None else self._dead_letters.write(records)


class DeadLetters:
    """Writes rejected records to a topic, because Kafka has no dead letters of its own."""

    def __init__(self, topic: object, config: Mapping[str, Any], timeout: float) -> None:
        if not isinstance(topic, str) or topic.startswith("^") or not TOPIC.fullmatch(topic):
            raise ImproperlyConfigured(f"dead_letters is {topic!r}; it must be the name of a topic.")
        self._topic = topic
        self._timeout = timeout
        # The broker decides what is too large: the record was within the limits of its own topic.
        self._pool = ProducerPool(read_config({"message.max.bytes": MAX_DEAD_LETTER_BYTES, **config}, timeout))

    def write(self, records: Sequence[Received]) -> str:
        """Write records with their keys and headers. Return the reason if not all were confirmed."""
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
