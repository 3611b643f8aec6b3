"""`KafkaConsumer`: reads topics as a member of a consumer group."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from confluent_kafka import Message as Received
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import Consumer, Incoming, Refused, Unavailable
from django_outbox.brokers.kafka.call import KafkaCall
from django_outbox.brokers.kafka.options import TOPIC, read_config, read_group_options, servers
from django_outbox.brokers.kafka.producers import ProducerPool
from django_outbox.brokers.kafka.records import Headers, Record, read_record
from django_outbox.brokers.kafka.session import Place, Session
from django_outbox.brokers.options import require_seconds
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.messages import ACCEPTED

MAX_DEAD_LETTER_BYTES = 1_000_000_000
"""The maximum of librdkafka for `message.max.bytes`."""

ORIGIN = "outbox-rejected-from"
"""Header that names the record's topic, partition and offset."""


class KafkaConsumer(Consumer):
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

    def __init__(
        self,
        alias: str,
        *,
        config: Mapping[str, Any],
        group: str,
        topics: str | Sequence[str],
        dead_letters: str = "",
        timeout: float = 15.0,
        **options: Any,
    ) -> None:
        super().__init__(alias, **options)
        require_seconds("timeout", timeout)
        self._options = read_group_options(config=config, group=group, topics=topics, timeout=timeout)
        self._dead_letters: DeadLetters | None = None
        if dead_letters != "":
            self._dead_letters = DeadLetters(dead_letters, config, timeout)
        elif "reject" in (self.unknown_types, self.invalid):
            raise ImproperlyConfigured(
                "unknown_types or invalid is 'reject', but dead_letters is blank; name a topic for rejected messages."
            )
        self._session: Session | None = None
        self._records: dict[int, Received] = {}
        self._tag = 0

    @property
    def source(self) -> str:
        topics = ", ".join(self._options.topics)
        return f"topics {topics!r} as group {self._options.group!r} at {servers(self._options.config)}"

    def open(self, max_messages: int | None = None) -> None:
        self.close()
        self._session = Session(self._options)
        self._session.join()

    def receive(self, seconds: float) -> list[Incoming]:
        records = self._open_session().take(self.batch_size, self.batch_bytes, seconds)
        first = self._tag + 1
        self._tag += len(records)
        self._records = dict(enumerate(records, first))
        return [read_record(tag, record) for tag, record in self._records.items()]

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        session = self._session
        records = {message.tag: self._records[message.tag] for message in batch if message.tag in self._records}
        self._records = {}
        if session is None or not records:
            return
        if rejected and self._dead_letters is not None:
            reason = self._dead_letters.write([record for tag, record in records.items() if tag in rejected])
            if reason:
                # The batch is delivered again; its stored messages are recognized as duplicates.
                problem = f"rejected messages cannot be written to the topic in dead_letters: {reason}"
                session.break_off(problem)
                raise Refused(problem)
        offsets: dict[Place, int] = {}
        for record in records.values():
            offsets[record.topic() or "", record.partition() or 0] = (record.offset() or 0) + 1
        session.commit(offsets)

    def pause(self) -> None:
        self._open_session().pause()

    def resume(self) -> None:
        self._open_session().resume()

    def is_drained(self) -> bool:
        return self._open_session().is_drained()

    def close(self) -> None:
        self._records = {}
        if self._dead_letters is not None:
            self._dead_letters.close()
        if self._session is not None:
            session, self._session = self._session, None
            session.leave()

    def _open_session(self) -> Session:
        if self._session is None:
            raise Unavailable("the consumer is not connected")
        return self._session


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
        """Close the connection."""
        self._pool.close()

    def _encode(self, record: Received) -> Record:
        pairs: Any = record.headers() or []
        origin = f"{record.topic()}/{record.partition()}/{record.offset()}"
        headers: Headers = [*pairs, (ORIGIN, origin)]
        return (self._topic, record.value(), record.key(), headers)
