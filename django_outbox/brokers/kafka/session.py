"""One membership of a consumer group: the partitions that it has, the records received, the offsets to commit."""

import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import Consumer as KafkaClient
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka import Message as Received

from django_outbox.brokers.consumer import Unavailable
from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.errors import meaning_of
from django_outbox.brokers.kafka.options import GroupOptions, Log

LEAVE_TIMEOUT = 5.0
"""Seconds for committing and leaving the group. Without a broker, librdkafka may wait for one forever."""

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Session:
    """A client of librdkafka that is a member of the group. One thread calls all methods.

    The client's callbacks run within `take` and `leave` only, so a batch in hand never changes.
    """

    def __init__(self, options: GroupOptions) -> None:
        self._options = options
        self._state = ConnectionState(options.config)
        self._client = KafkaClient({**options.config, "error_cb": self._state.note_error, "logger": Log()})
        self._ahead: deque[Received] = deque()
        self._assigned: set[Place] = set()
        self._ends: dict[Place, int] = {}
        self._has_joined = False
        self._is_paused = False
        self._settled: dict[Place, int] = {}
        self._problem = ""

    def join(self) -> None:
        """Connect, and begin to join the group.

        Raises:
            Unavailable: no broker responds, or a topic cannot be read.
        """
        deadline = time.monotonic() + self._options.timeout
        for topic in self._options.topics:
            wanted = None if topic.startswith("^") else topic
            found = self._state.list_topics(self._client, wanted, deadline)
            if not self._state.is_connected:
                raise Unavailable(self._state.reason)
            error = found.get(topic)
            if error is not None:
                remedy = meaning_of(error).remedy.replace("write to", "read").replace("option topic", "option topics")
                raise Unavailable(f"topic {topic!r}: {error.str()}{': ' if remedy else ''}{remedy}")
        self._client.subscribe(
            list(self._options.topics), on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def take(self, max_records: int, max_bytes: int, seconds: float) -> list[Received]:
        """Return the next records; wait for the first one at most `seconds`.

        Raises:
            Unavailable: no broker can be reached, or the group refuses this member.
        """
        if not self._ahead:
            self._receive(max_records, seconds)
        taken: list[Received] = []
        size = 0
        while self._ahead and len(taken) < max_records:
            size += len(self._ahead[0].value() or b"")
            if taken and size > max_bytes:
                break
            taken.append(self._ahead.popleft())
        # librdkafka reports this only once, when records received earlier may still be unread. If the brokers are back
        # after them, the next session connects at once.
        if not taken and self._state.all_down:
            raise Unavailable(self._state.reason)
        return taken

    def commit(self, offsets: dict[Place, int]) -> None:
        """Commit the offsets of the next records to read, without waiting.

        Errors are ignored: the records are delivered again.
        """
        # A partition that another member has taken over is not ours to commit.
        own = {place: offset for place, offset in offsets.items() if place in self._assigned}
        self._settled.update(own)
        self._commit(own)

    def break_off(self, problem: str) -> None:
        """Let the next call of `take` raise Unavailable. Later records must not be committed before these."""
        self._problem = problem
        self._ahead.clear()

    def pause(self) -> None:
        """Receive no further records, also of partitions that are assigned later."""
        self._is_paused = True
        self._client.pause(self._client.assignment())

    def resume(self) -> None:
        """Receive records again."""
        self._is_paused = False
        self._client.resume(self._client.assignment())

    def is_drained(self) -> bool:
        """Return whether all records of the assigned partitions were taken.

        Raises:
            Unavailable: a broker does not respond.
        """
        if self._problem or self._ahead or not self._has_joined:
            return False
        try:
            return all(self._is_at_end(place) for place in sorted(self._assigned))
        except KafkaException as error:
            raise Unavailable(self._state.explain(error.args[0])) from error

    def leave(self) -> None:
        """Commit the settled offsets and leave the group. Without a broker, that continues in the background."""
        thread = threading.Thread(target=self._leave, name="outbox-kafka-leave", daemon=True)
        thread.start()
        thread.join(LEAVE_TIMEOUT)

    def _leave(self) -> None:
        self._commit_settled()
        with suppress(KafkaException, RuntimeError):
            self._client.close()

    def _receive(self, max_records: int, seconds: float) -> None:
        if self._problem:
            raise Unavailable(self._problem)
        try:
            # `consume` would wait for a whole batch.
            first = self._client.poll(seconds)
            if first is None:
                return
            records = [first, *(self._client.consume(max_records - 1, timeout=0) if max_records > 1 else ())]
        except KafkaException as raised:
            raise Unavailable(self._state.explain(raised.args[0])) from raised
        for record in records:
            error, place = record.error(), (record.topic() or "", record.partition() or 0)
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._ends[place] = record.offset() or 0
            elif error is not None:
                raise Unavailable(self._state.explain(error))
            elif place in self._assigned:
                self._ahead.append(record)

    def _is_at_end(self, place: Place) -> bool:
        partition = TopicPartition(*place)
        low, high = self._client.get_watermark_offsets(partition, timeout=self._options.timeout)
        # The last offsets of a transaction or of a compacted topic may belong to no record.
        if low == high or self._ends.get(place, 0) >= high:
            return True
        (position,) = self._client.position([partition])
        if position.offset >= 0:
            return position.offset >= high
        (committed,) = self._client.committed([partition], timeout=self._options.timeout)
        if committed.offset >= 0:
            return committed.offset >= high
        return str(self._options.config.get("auto.offset.reset")) in ("latest", "end", "largest")

    def _on_assign(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        self._has_joined = True
        self._assigned.update(_places(partitions))
        if self._is_paused:
            client.pause(partitions)

    def _on_revoke(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        # The next owner of the partition begins at these offsets.
        self._commit_settled()
        self._on_lost(client, partitions)

    def _on_lost(self, client: KafkaClient, partitions: list[TopicPartition]) -> None:
        revoked = _places(partitions)
        self._assigned -= revoked
        for place in revoked:
            self._settled.pop(place, None)
            self._ends.pop(place, None)
        self._ahead = deque(each for each in self._ahead if (each.topic(), each.partition()) not in revoked)

    def _commit(self, offsets: dict[Place, int]) -> None:
        if offsets:
            with suppress(KafkaException):
                self._client.commit(offsets=_positions(offsets), asynchronous=True)

    def _commit_settled(self) -> None:
        # A synchronous commit waits forever if the coordinator does not respond. librdkafka leaves the group after the
        # commits under way. Records that are not committed are delivered again, and recognized.
        self._commit(self._settled)


def _places(partitions: Iterable[TopicPartition]) -> set[Place]:
    return {(each.topic, each.partition) for each in partitions}


def _positions(offsets: dict[Place, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()]
