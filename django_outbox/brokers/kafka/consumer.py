"""`KafkaConsumer`: reads topics."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from confluent_kafka import Message as Record
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import Consumer, Incoming, Refused, Unavailable
from django_outbox.brokers.kafka.consumer_options import TOPIC, read_group_options
from django_outbox.brokers.kafka.dead_letters import DeadLetters
from django_outbox.brokers.kafka.decoding import read_record
from django_outbox.brokers.kafka.options import servers
from django_outbox.brokers.kafka.session import Place, Session
from django_outbox.brokers.options import require_seconds


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
        if not isinstance(dead_letters, str):
            raise ImproperlyConfigured(f"dead_letters is {dead_letters!r}; it must be the name of a topic.")
        if dead_letters:
            if dead_letters.startswith("^") or not TOPIC.fullmatch(dead_letters):
                raise ImproperlyConfigured(f"dead_letters is {dead_letters!r}; it must be the name of a topic.")
            self._dead_letters = DeadLetters(dead_letters, config, timeout)
        elif "reject" in (self.unknown_types, self.invalid):
            raise ImproperlyConfigured(
                "unknown_types or invalid is 'reject', but dead_letters is blank; name a topic for rejected messages."
            )
        self._session: Session | None = None
        self._records: dict[int, Record] = {}
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
                # The batch comes again, and what was stored of it is recognized.
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
