"""The offsets of a group's member: which ones to commit, and which ones Kafka has confirmed."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, TopicPartition

from django_outbox.brokers.kafka.errors import explain_commit
from django_outbox.utils.logs import logger

Place = tuple[str, int]
"""A topic and the number of a partition."""


class Offsets:
    """The settled and the confirmed offsets of assigned partitions.

    Confirmed offsets are not committed again, as librdkafka itself would: if the topic was deleted and created again,
    they would skip its first records.
    """

    def __init__(self, alias: str, group: str) -> None:
        self._alias = alias
        self._group = group
        self._settled: dict[Place, int] = {}
        self._confirmed: dict[Place, int] = {}
        self._must_repeat = False
        self._is_refusal_logged = False

    def note_settled(self, offsets: Mapping[Place, int]) -> None:
        self._settled.update(offsets)

    def note_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        """Take the result of a commit, as a callback of librdkafka."""
        error = error or next((each.error for each in partitions if each.error), None)
        if error is not None:
            # A group that is being rebalanced refuses commits. If no record follows, no later commit makes up for it.
            self._must_repeat = True
            self._log_refusal(explain_commit(error))
            return
        self._is_refusal_logged = False
        for each in partitions:
            place = each.topic, each.partition
            # librdkafka may repeat a commit after a newer one.
            if each.offset < self._confirmed.get(place, 0):
                self._must_repeat = True
            self._confirmed[place] = each.offset

    def forget(self, places: Collection[Place]) -> None:
        for place in places:
            self._settled.pop(place, None)
            self._confirmed.pop(place, None)

    def unconfirmed(self) -> dict[Place, int]:
        self._must_repeat = False
        return {place: offset for place, offset in self._settled.items() if self._confirmed.get(place) != offset}

    def to_repeat(self) -> dict[Place, int]:
        return self.unconfirmed() if self._must_repeat else {}

    def _log_refusal(self, reason: str) -> None:
        if reason and not self._is_refusal_logged:
            self._is_refusal_logged = True
            logger.error(
                "Consumer %(consumer)r: Kafka refuses the offsets of group %(group)r. They will be sent again; if this "
                "process ends before, stored messages are redelivered, and are recognized: %(reason)s",
                event="consumer.commit_refused",
                consumer=self._alias,
                group=self._group,
                reason=reason,
            )


def places_of(partitions: Iterable[TopicPartition]) -> set[Place]:
    return {(each.topic, each.partition) for each in partitions}
