"""A consumer that reads all partitions of Kafka's topics by their offsets, which it keeps in a file."""

import sys
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from django_outbox.brokers.text_headers import KEY, MESSAGE_ID
from tests.faults.brokers.kafka import TOPICS
from tests.faults.consumers.journals import Journals, consume
from tests.faults.positions import Positions

COUNT = 500


def read(servers: str, journals: Journals) -> None:
    """Note records, and go on after the last one that was noted."""
    positions = Positions(journals.folder)
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            # A record that is gone is a loss.
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 50,
            "reconnect.backoff.max.ms": 1000,
        }
    )
    try:
        consumer.assign(
            [
                TopicPartition(topic, number, positions[f"{topic}/{number}"])
                for topic, count in TOPICS.items()
                for number in range(count)
            ]
        )
        while not journals.stopping:
            read_batch(consumer, journals, positions)
    finally:
        consumer.close()


def read_batch(consumer: Consumer, journals: Journals, positions: Positions) -> None:
    noted: dict[str, int] = {}
    for record in consumer.consume(COUNT, 0.2):
        error = record.error()
        if error is not None:
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            # The client connects again by itself.
            sys.stderr.write(f"{error.str()}\n")
            continue
        pairs: Any = record.headers()
        headers = {name: value.decode() for name, value in pairs}
        if record.topic() == "dead":
            journals.note_dead(headers[MESSAGE_ID], again=False)
        else:
            journals.note(headers[MESSAGE_ID], headers.get(KEY, ""), record.value() or b"", again=False)
        noted[f"{record.topic()}/{record.partition()}"] = (record.offset() or 0) + 1
    if noted:
        journals.flush()
        positions.note(noted)


if __name__ == "__main__":
    consume(read, (KafkaException,))
