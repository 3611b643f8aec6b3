"""`KafkaConsumer`: reads topics as a member of a consumer group."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

# In `confluent_kafka`, OpenTelemetry replaces it by one that makes two traces for each batch.
from confluent_kafka.cimpl import Consumer as KafkaClient
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.consumer import (
    ConnectedConsumer,
    ConsumerConnection,
    Incoming,
    Refused,
    Unavailable,
    take_batch,
)
from django_outbox.brokers.kafka.call import KafkaCall
from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.encoding import Headers, Record, read_delivery
from django_outbox.brokers.kafka.errors import explain_commit, meaning_of
from django_outbox.brokers.kafka.options import TOPIC, Log, read_config, read_group_config, read_topics, servers
from django_outbox.brokers.kafka.publishing import ProducerPool
from django_outbox.brokers.options import require_seconds
from django_outbox.brokers.publisher import BatchRefused
from django_outbox.logs import logger
from django_outbox.messages import ACCEPTED

MAX_DEAD_LETTER_BYTES = 1_000_000_000
"""The maximum of librdkafka for `message.max.bytes`."""

ORIGIN = "outbox-rejected-from"
"""Header that names the record's topic, partition and offset."""


@dataclass(kw_only=True, eq=False, repr=False)
class KafkaConsumer(ConnectedConsumer["KafkaConsumerConnection"]):
    """Reads topics as a member of a consumer group. The offsets are committed after the database's commit.

    Args:
        alias: the consumer's name in the settings.
        config: a dict of librdkafka's options for the consumer, with `bootstrap.servers` and those for TLS and SASL.
        group: the consumer group.
        topics: a topic, a pattern of topics, which begins with `^`, or a list of them. They must exist. With
            `"group.protocol": "consumer"` a pattern must match the whole name: `^orders.*`, not `^orders`.
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
    _dead_pool: ProducerPool | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_seconds("timeout", self.timeout)
        self._topics = read_topics(self.topics)
        self._config = read_group_config(self.config, self.group)
        self.require_dead_letters(self.dead_letters, "a topic")
        dead: object = self.dead_letters
        if dead != "":
            if not isinstance(dead, str) or dead.startswith("^") or not TOPIC.fullmatch(dead):
                raise ImproperlyConfigured(f"dead_letters is {dead!r}; it must be the name of a topic.")
            # The broker decides what is too large: the record was within the limits of its own topic.
            config = {"message.max.bytes": MAX_DEAD_LETTER_BYTES, **self.config}
            self._dead_pool = ProducerPool(read_config(config, self.timeout))

    @property
    def source(self) -> str:
        return f"topics {', '.join(self._topics)!r} as group {self.group!r} at {servers(self._config)}"

    def _make_connection(self) -> "KafkaConsumerConnection":
        return KafkaConsumerConnection(self.alias, self._config, self._topics, self.timeout, self._write_dead)

    def list_warnings(self) -> Sequence[str]:
        return () if self._connection is None else self._connection.warnings

    def close(self) -> None:
        super().close()
        if self._dead_pool is not None:
            self._dead_pool.close()

    def _write_dead(self, records: Sequence[Received]) -> str:
        """Write rejected records with their keys and headers. Return the reason if not all were confirmed."""
        if self._dead_pool is None:
            # A message that is too large to be stored is dropped without dead letters; the caller has logged that.
            return ""
        try:
            outcomes = KafkaCall(records, self._encode_dead, self._dead_pool, self.timeout).run()
        except BatchRefused as error:
            return str(error)
        return next((outcome.error for outcome in outcomes if outcome is not ACCEPTED), "")

    def _encode_dead(self, record: Received) -> Record:
        pairs: Any = record.headers() or []
        origin = f"{record.topic()}/{record.partition()}/{record.offset()}"
        headers: Headers = [*pairs, (ORIGIN, origin)]
        return (self.dead_letters, record.value(), record.key(), headers)


LEAVE_TIMEOUT = 5.0
"""Seconds for committing and leaving the group. Without a broker, librdkafka may wait for one forever."""

REJOIN_AFTER = (1.0, 5.0, 30.0)
"""Seconds without a partition of a topic after which a member joins the group again, for each time that it does.

A group that forms while its coordinator has not heard of a new topic does not assign the topic's partitions, and
librdkafka does not notice when the coordinator has. The times are limited because a member is assigned none, too, if
there are more members than partitions.
"""

AT_THE_END = ("latest", "end", "largest")
"""The values of `auto.offset.reset` with which a new group begins at the end."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


class KafkaConsumerConnection(ConsumerConnection):
    """A client of librdkafka that is a member of the group. One thread calls all methods.

    The client's callbacks run within `receive` and `close` only, so a batch in hand never changes.

    Args:
        write_dead: writes rejected records to the dead letters; returns the reason if not all were confirmed.
    """

    def __init__(
        self,
        alias: str,
        config: Mapping[str, Any],
        topics: Sequence[str],
        timeout: float,
        write_dead: Callable[[Sequence[Received]], str],
    ) -> None:
        self._alias = alias
        self._config = config
        self._topics = topics
        self._names = [topic for topic in topics if not topic.startswith("^")]
        self._do_brokers_assign = str(config.get("group.protocol")).lower() == "consumer"
        self._timeout = timeout
        self._write_dead = write_dead
        self._state = ConnectionState(config)
        callbacks = {"error_cb": self._state.note_error, "on_commit": self._on_commit}
        self._client = KafkaClient({**config, **callbacks, "logger": Log()})
        self._records: dict[int, Received] = {}
        self._tag = 0
        self._ahead: deque[Received] = deque()
        self._assigned: set[Place] = set()
        self.warnings: list[str] = []
        self._is_subscribed = False
        self._rejoin_waits = deque(REJOIN_AFTER)
        self._rejoin_at = math.inf
        self._settled: dict[Place, int] = {}
        self._committed: dict[Place, int] = {}
        self._has_failed_to_commit = False
        self._is_refusal_logged = False
        self._problem = ""

    def open(self) -> None:
        deadline = time.monotonic() + self._timeout
        for topic in self._topics:
            wanted = None if topic.startswith("^") else topic
            found = self._state.list_topics(self._client, wanted, deadline)
            if not self._state.is_connected:
                raise Unavailable(self._state.reason)
            error = found.get(topic)
            if error is not None:
                remedy = meaning_of(error).remedy.replace("write to", "read").replace("option topic", "option topics")
                raise Unavailable(f"topic {topic!r}: {error.str()}{': ' if remedy else ''}{remedy}")
            if wanted is None and self._do_brokers_assign and not _matches_any(topic, found):
                self.warnings.append(
                    f"the pattern {topic!r} matches no topic. With group.protocol consumer, it must match the whole "
                    f"name: write {topic + '.*'!r} for the topics whose names begin with it"
                )
        self._find_coordinator()

    def receive(self, max_messages: int, max_bytes: int, seconds: float) -> list[Incoming]:
        if not self._ahead:
            self._receive(max_messages, seconds)
        taken, _ = take_batch(self._ahead, max_messages, max_bytes, lambda record: len(record.value() or b""))
        # librdkafka reports this only once, when records received earlier may still be unread. If the brokers are back
        # after them, the next session connects at once.
        if not taken and self._state.all_down:
            raise Unavailable(self._state.reason)
        self._records = dict(enumerate(taken, self._tag + 1))
        self._tag += len(taken)
        return [read_delivery(tag, record) for tag, record in self._records.items()]

    def settle(self, batch: Sequence[Incoming], rejected: Collection[int]) -> None:
        records = {message.tag: self._records[message.tag] for message in batch if message.tag in self._records}
        self._records = {}
        dead = [record for tag, record in records.items() if tag in rejected]
        if dead and (reason := self._write_dead(dead)):
            # The batch is delivered again; its stored messages are recognized as duplicates. Until then, later records
            # must not be committed before these.
            self._problem = f"rejected messages cannot be written to the topic in dead_letters: {reason}"
            self._ahead.clear()
            raise Refused(self._problem)
        offsets: dict[Place, int] = {}
        for record in records.values():
            offsets[record.topic() or "", record.partition() or 0] = (record.offset() or 0) + 1
        # A partition that another member has taken over is not ours to commit.
        own = {place: offset for place, offset in offsets.items() if place in self._assigned}
        self._settled.update(own)
        self._commit(own)

    def close(self) -> None:
        """Commit the settled offsets and leave the group. Without a broker, that continues in the background."""
        thread = threading.Thread(target=self._leave, name="outbox-kafka-leave", daemon=True)
        thread.start()
        thread.join(LEAVE_TIMEOUT)

    def _leave(self) -> None:
        self._commit_settled()
        with suppress(KafkaException, RuntimeError):
            self._client.close()

    def _find_coordinator(self) -> None:
        """Ask the group's coordinator for an offset, which needs no member."""
        try:
            self._client.committed([TopicPartition(self._topics[0], 0)], timeout=self._timeout)
        except KafkaException as raised:
            raise Unavailable(self._state.explain(raised.args[0])) from raised

    def _join(self) -> None:
        self._is_subscribed = True
        self._rejoin_at = math.inf
        self._client.subscribe(
            list(self._topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _plan_to_rejoin(self) -> None:
        may_rejoin = self._rejoin_waits and (not self._assigned or self._find_missing())
        self._rejoin_at = time.monotonic() + self._rejoin_waits[0] if may_rejoin else math.inf

    def _rejoin(self) -> None:
        self._rejoin_waits.popleft()
        if self._do_brokers_assign or (self._assigned and self._has_group_read(self._find_missing())):
            self._plan_to_rejoin()
            return
        # With a cooperative assignor, librdkafka ignores a subscription that is the same as before.
        self._client.unsubscribe()
        self._join()

    def _find_missing(self) -> list[str]:
        """Return the topics without a partition that is assigned. Only the brokers know which ones match a pattern."""
        assigned = {topic for topic, _ in self._assigned}
        return [name for name in self._names if name not in assigned]

    def _has_group_read(self, names: Iterable[str]) -> bool:
        """Return whether the group has read each of the topics, or may have. Then its coordinator has heard of them."""
        try:
            places = [TopicPartition(*place) for place in self._list_places(names)]
            found = self._client.committed(places, timeout=self._timeout)
        except KafkaException:
            return True
        return {each.topic for each in found if each.offset >= 0} == set(names)

    def _list_places(self, names: Iterable[str]) -> set[Place]:
        found = self._client.list_topics
        counts = {name: len(found(name, timeout=self._timeout).topics[name].partitions) for name in names}
        # Every topic has a partition, even if the broker has not heard of it yet.
        return {(name, number) for name, count in counts.items() for number in range(max(count, 1))}

    def _receive(self, max_records: int, seconds: float) -> None:
        if self._problem:
            raise Unavailable(self._problem)
        if self._has_failed_to_commit:
            self._has_failed_to_commit = False
            self._commit_settled()
        try:
            if not self._is_subscribed:
                self._join()
            if time.monotonic() > self._rejoin_at:
                self._rejoin()
            # `consume` would wait for a whole batch.
            first = self._client.poll(seconds)
            if first is None:
                return
            records = [first, *(self._client.consume(max_records - 1, timeout=0) if max_records > 1 else ())]
        except KafkaException as raised:
            raise Unavailable(self._state.explain(raised.args[0])) from raised
        for record in records:
            error, place = record.error(), (record.topic() or "", record.partition() or 0)
            if error is not None:
                raise Unavailable(self._state.explain(error))
            if place in self._assigned:
                self._ahead.append(record)

    def _on_assign(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        self._assigned.update(_places(partitions))
        if str(self._config.get("auto.offset.reset")).lower() in AT_THE_END:
            self._commit_ends(client, partitions)
        self._plan_to_rejoin()

    def _commit_ends(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        """Commit the ends of partitions without an offset.

        Otherwise a partition of which nothing was read would begin at a later end after a pause or a restart.
        """
        with suppress(KafkaException):
            found = client.committed(partitions, timeout=self._timeout)
            new = _places(each for each in found if each.offset < 0)
            ends = {place: client.get_watermark_offsets(TopicPartition(*place), self._timeout)[1] for place in new}
            self._settled.update(ends)
            self._commit(ends)

    def _on_revoke(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        # The next owner of the partition begins at these offsets.
        self._commit_settled()
        self._on_lost(client, partitions)

    def _on_lost(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        revoked = _places(partitions)
        self._assigned -= revoked
        for place in revoked:
            self._settled.pop(place, None)
            self._committed.pop(place, None)
        self._ahead = deque(each for each in self._ahead if (each.topic(), each.partition()) not in revoked)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        error = error or next((each.error for each in partitions if each.error), None)
        if error is None:
            self._is_refusal_logged = False
            for each in partitions:
                place = each.topic, each.partition
                # librdkafka may repeat a commit after a newer one.
                if each.offset < self._committed.get(place, 0):
                    self._has_failed_to_commit = True
                self._committed[place] = each.offset
            return
        # A group that is being rebalanced refuses commits. If no record follows, no later commit makes up for it.
        self._has_failed_to_commit = True
        reason = explain_commit(error)
        if reason and not self._is_refusal_logged:
            self._is_refusal_logged = True
            logger.error(
                "Consumer %(consumer)r: Kafka refuses the offsets of group %(group)r. They will be sent again; if this "
                "process ends before, messages that were stored come again, and are recognized: %(reason)s",
                event="consumer.commit_refused",
                consumer=self._alias,
                group=self._config["group.id"],
                reason=reason,
            )

    def _commit(self, offsets: dict[Place, int]) -> None:
        if offsets:
            with suppress(KafkaException):
                positions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
                self._client.commit(offsets=positions, asynchronous=True)

    def _commit_settled(self) -> None:
        # A synchronous commit waits forever if the coordinator does not respond. librdkafka leaves the group after the
        # commits under way. Records that are not committed are delivered again, and recognized. Confirmed offsets are
        # not committed again: if the topic was deleted and created again, they would skip its first records.
        self._commit({place: offset for place, offset in self._settled.items() if self._committed.get(place) != offset})


def _matches_any(pattern: str, topics: Iterable[str]) -> bool:
    """Return whether a pattern matches a topic as Kafka 4 matches it. What only Kafka can compile counts as a match."""
    with suppress(re.error):
        return any(map(re.compile(pattern).fullmatch, topics))
    return True


def _places(partitions: Iterable[TopicPartition]) -> set[Place]:
    return {(each.topic, each.partition) for each in partitions}
