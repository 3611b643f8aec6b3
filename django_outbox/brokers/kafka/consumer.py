"""`KafkaConsumer`: reads topics as a member of a consumer group."""

import math
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka import Message as Received

# In `confluent_kafka`, OpenTelemetry replaces it by one that makes two traces for each batch.
from confluent_kafka.cimpl import Consumer as KafkaClient

from django_outbox.brokers.consumer import ConnectedConsumer, ConsumerConnection, Incoming, Unavailable, take_batch
from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.encoding import read_delivery
from django_outbox.brokers.kafka.offsets import Offsets, Place, places_of
from django_outbox.brokers.kafka.options import Log, read_group_config, read_topics, servers
from django_outbox.brokers.options import require_seconds

LEAVE_TIMEOUT = 5.0
"""Seconds for committing and leaving the group. Without a broker, librdkafka may wait for one forever."""

REJOIN_AFTER = (1.0, 5.0, 30.0)
"""Seconds without a partition after which a member joins the group again, for each time that it does.

A group that forms while its coordinator has not heard of a new topic does not assign the topic's partitions, and
librdkafka does not notice when the coordinator has. The times are limited because a member is assigned none, too, if
there are more members than partitions.
"""


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaConsumer(ConnectedConsumer):
    """Reads topics as a member of a consumer group. The offsets are committed after the database's commit.

    Args:
        alias: the consumer's name in the settings.
        config: a dict of librdkafka's options for the consumer, with `bootstrap.servers` and those for TLS and SASL.
        group: the consumer group.
        topics: a topic, or a list of them. They must exist.
        timeout: seconds until connecting is given up.
        options: the options of every consumer; see `Consumer`.
    """

    broker_name: ClassVar[str] = "Kafka"

    config: Mapping[str, Any]
    group: str
    topics: str | Sequence[str]
    timeout: float = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_seconds("timeout", self.timeout)
        self._topics = read_topics(self.topics)
        self._config = read_group_config(self.config, self.group)

    @property
    def source(self) -> str:
        return f"topics {', '.join(self._topics)!r} as group {self.group!r} at {servers(self._config)}"

    def _make_connection(self) -> "KafkaConsumerConnection":
        return KafkaConsumerConnection(self)


class KafkaConsumerConnection(ConsumerConnection):
    """A client of librdkafka that is a member of the group. One thread calls all methods.

    The client's callbacks run within `receive` and `close` only, so a batch in hand never changes.
    """

    def __init__(self, consumer: KafkaConsumer) -> None:
        config = consumer._config
        self._topics = consumer._topics
        self._do_brokers_assign = str(config.get("group.protocol")).lower() == "consumer"
        self._timeout = consumer.timeout
        self._state = ConnectionState(config)
        self._offsets = Offsets(consumer.alias, consumer.group)
        callbacks = {"error_cb": self._state.note_error, "on_commit": self._offsets.note_commit}
        self._client = KafkaClient({**config, **callbacks, "logger": Log()})
        self._records: list[Received] = []
        self._tag = 0
        self._ahead: deque[Received] = deque()
        self._assigned: set[Place] = set()
        self._is_subscribed = False
        self._rejoin_waits = deque(REJOIN_AFTER)
        self._rejoin_at = math.inf

    def open(self) -> None:
        deadline = time.monotonic() + self._timeout
        for topic in self._topics:
            found = self._state.list_topics(self._client, topic, deadline)
            if not self._state.is_connected:
                raise Unavailable(self._state.reason)
            if (error := found.get(topic)) is not None:
                raise Unavailable(f"topic {topic!r}: {error.str()}")
        try:
            # Asks the group's coordinator, which needs no member.
            self._client.committed([TopicPartition(self._topics[0], 0)], timeout=self._timeout)
        except KafkaException as raised:
            raise Unavailable(self._state.explain(raised.args[0])) from raised

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._ahead:
            self._receive(max_messages, seconds)
        self._records, _ = take_batch(self._ahead, max_messages, max_bytes, lambda record: len(record.value() or b""))
        # librdkafka reports this only once, when records received earlier may still be unread. If the brokers are back
        # after them, the next session connects at once.
        if not self._records and self._state.all_down:
            raise Unavailable(self._state.reason)
        first = self._tag + 1
        self._tag += len(self._records)
        return [read_delivery(tag, record) for tag, record in enumerate(self._records, first)]

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        offsets: dict[Place, int] = {}
        for record in self._records:
            offsets[record.topic() or "", record.partition() or 0] = (record.offset() or 0) + 1
        self._records = []
        # A partition that another member has taken over is not ours to commit.
        self._commit({place: offset for place, offset in offsets.items() if place in self._assigned})

    def close(self) -> None:
        """Commit the settled offsets and leave the group. Without a broker, that continues in the background."""
        thread = threading.Thread(target=self._leave, name="outbox-kafka-leave", daemon=True)
        thread.start()
        thread.join(LEAVE_TIMEOUT)

    def _leave(self) -> None:
        self._commit(self._offsets.unconfirmed())
        with suppress(KafkaException, RuntimeError):
            self._client.close()

    def _join(self) -> None:
        self._is_subscribed = True
        self._rejoin_at = math.inf
        self._client.subscribe(
            list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _plan_to_rejoin(self) -> None:
        may_rejoin = self._rejoin_waits and not self._assigned
        self._rejoin_at = time.monotonic() + self._rejoin_waits[0] if may_rejoin else math.inf

    def _rejoin(self) -> None:
        self._rejoin_waits.popleft()
        if self._do_brokers_assign:
            self._plan_to_rejoin()
            return
        # With a cooperative assignor, librdkafka ignores a subscription that is the same as before.
        self._client.unsubscribe()
        self._join()

    def _receive(self, max_records: int, seconds: float) -> None:
        self._commit(self._offsets.to_repeat())
        try:
            if not self._is_subscribed:
                self._join()
            if time.monotonic() > self._rejoin_at:
                self._rejoin()
            # `consume` would wait for a whole batch.
            first = self._client.poll(seconds)
            others = self._client.consume(max_records - 1, timeout=0) if first is not None and max_records > 1 else []
        except KafkaException as raised:
            raise Unavailable(self._state.explain(raised.args[0])) from raised
        for record in [] if first is None else [first, *others]:
            error, place = record.error(), (record.topic() or "", record.partition() or 0)
            if error is not None:
                raise Unavailable(self._state.explain(error))
            if place in self._assigned:
                self._ahead.append(record)

    def _on_assign(self, _client: KafkaClient, partitions: list[TopicPartition]) -> None:
        self._assigned.update(places_of(partitions))
        self._plan_to_rejoin()

    def _on_revoke(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        # The next owner of the partition begins at these offsets.
        self._commit(self._offsets.unconfirmed())
        self._on_lost(client, partitions)

    def _on_lost(self, _client: KafkaClient, partitions: list[TopicPartition]) -> None:
        revoked = places_of(partitions)
        self._assigned -= revoked
        self._offsets.forget(revoked)
        self._ahead = deque(each for each in self._ahead if (each.topic(), each.partition()) not in revoked)
        # The group reassigns its partitions.
        self._rejoin_at = math.inf

    def _commit(self, offsets: dict[Place, int]) -> None:
        """Commit offsets without waiting: if the coordinator does not respond, a synchronous commit waits forever.

        librdkafka leaves the group after the commits under way. Records that are not committed are recognized.
        """
        self._offsets.note_settled(offsets)
        if offsets:
            with suppress(KafkaException):
                positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
                self._client.commit(offsets=positions, asynchronous=True)
