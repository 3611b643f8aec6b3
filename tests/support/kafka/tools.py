"""What tests do with Kafka's topics."""

import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from tests.support.kafka.mock import MOCKS
from tests.support.waiting import eventually

PATIENCE = 20.0


@functools.cache
def admin(servers: str) -> AdminClient:
    """Return this process's own client of a cluster."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


def create_topic(servers: str, name: str, partitions: int = 4, **config: Any) -> str:
    """Create a topic with the cluster's number of replicas, wait until it can be written to, and return its name.

    Its settings have underscores for periods.
    """
    if servers in MOCKS:
        MOCKS[servers].create_topic(name, partitions)
        return name
    settings = {name.replace("_", "."): value for name, value in config.items()}

    def create() -> bool:
        try:
            admin(servers).create_topics([NewTopic(name, partitions, config=settings)])[name].result(PATIENCE)
        except KafkaException as error:
            # A client that learns of the brokers removes the one that it began with, whatever is under way there.
            if error.args[0].code() == KafkaError._DESTROY_BROKER:
                return False
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        return True

    eventually(create, "the topic is created")

    def is_ready() -> bool:
        found = admin(servers).list_topics(name, timeout=PATIENCE).topics[name].partitions
        return len(found) == partitions and all(each.leader >= 0 for each in found.values())

    eventually(is_ready, "the partitions have leaders")
    return name


def alter_topic(servers: str, topic: str, **config: str) -> None:
    """Change settings of a topic; the mock ignores them."""
    if servers not in MOCKS:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        for name, value in config.items():
            setting = ConfigEntry(name.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            resource.add_incremental_config(setting)
        admin(servers).incremental_alter_configs([resource])[resource].result(PATIENCE)


def delete_topics(servers: str, *names: str) -> None:
    """Delete topics, without waiting until they are gone."""
    if servers not in MOCKS:
        admin(servers).delete_topics([*names])


def find_offsets(consumer: Consumer, partition: TopicPartition) -> tuple[int, int]:
    """Return the first offset of a partition and the next one.

    A client knows no partitions until it has metadata, and those of a new topic may be missing from its first.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return consumer.get_watermark_offsets(partition, timeout=PATIENCE)
        except KafkaException as error:
            # A broker may not have heard of a new topic yet, either, or of its leader.
            new = (
                KafkaError._UNKNOWN_PARTITION,
                KafkaError.UNKNOWN_TOPIC_OR_PART,
                KafkaError.NOT_LEADER_FOR_PARTITION,
                KafkaError.LEADER_NOT_AVAILABLE,
            )
            if error.args[0].code() not in new or time.monotonic() > deadline:
                raise
        time.sleep(0.02)
        consumer.list_topics(partition.topic, timeout=PATIENCE)


def write_records(producer: Producer, topic: str, partitions: int, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records, which are arguments of `produce`, in their order, and fail if one is refused.

    A client refuses those of a partition that it has not heard of, and says so to `on_delivery` only.
    """
    refused: list[KafkaError] = []

    def note(error: KafkaError | None, _: object) -> None:
        if error is not None:
            refused.append(error)

    def knows_partitions() -> bool:
        return len(producer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions) == partitions

    eventually(knows_partitions, "the client knows the partitions", seconds=PATIENCE)
    for record in records:
        producer.produce(topic, on_delivery=note, **record)
    assert not producer.flush(PATIENCE)
    assert not refused, refused


def read_topic(servers: str, topic: str, positions: dict[int, int]) -> list[Any]:
    """Return the records of a topic from these offsets on, and advance them; a partition begins at 0."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, "fetch.max.bytes": 10_000_000}
    )
    try:
        found = consumer.list_topics(topic, timeout=PATIENCE).topics[topic].partitions
        ends = {}
        for number in sorted(found):
            partition = TopicPartition(topic, number)
            low, high = find_offsets(consumer, partition)
            assert low == 0, "the mock has dropped records"
            if high > positions.setdefault(number, 0):
                ends[number] = high
        records: list[Any] = []
        consumer.assign([TopicPartition(topic, number, positions[number]) for number in ends])
        while any(positions[number] < end for number, end in ends.items()):
            (record,) = consumer.consume(1, timeout=PATIENCE)
            assert record.error() is None, record.error()
            records.append(record)
            positions[record.partition() or 0] = (record.offset() or 0) + 1
        return records
    finally:
        consumer.close()
