"""What tests do with Kafka's topics."""

from typing import Any

from confluent_kafka import Consumer, TopicPartition

PATIENCE = 20.0


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
            low, high = consumer.get_watermark_offsets(partition, timeout=PATIENCE)
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
