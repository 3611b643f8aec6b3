"""The Kafka publisher on Apache Kafka itself: what librdkafka's mock brokers do not show."""

import subprocess
from collections.abc import Iterator
from functools import partial

import pytest

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.jars import KAFKA
from tests.support.kafka.shared import MOCK_REASON, is_real, kafka_servers
from tests.support.kafka.tools import admin, create_topic, read_topic
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_real(), reason=MOCK_REASON),
]


@pytest.fixture
def servers() -> str:
    return kafka_servers()


@pytest.fixture
def publisher(servers: str) -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher("default", config={"bootstrap.servers": servers}, timeout=6.0)
    yield publisher
    publisher.close()


def test_a_topic_that_is_deleted_and_created_again_takes_messages(servers: str, publisher: KafkaPublisher):
    topic = create_topic(servers, unique_name(), 1)

    def is_accepted(body: bytes) -> bool:
        return publisher.publish([make_message(topic, body)]) == [ACCEPTED]

    eventually(partial(is_accepted, b"old"))
    admin(servers).delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin(servers).list_topics(timeout=60).topics, "the topic is gone")
    create_topic(servers, topic, 1)
    eventually(partial(is_accepted, b"new"), "the publisher has learned of the new topic")
    assert {record.value() for record in read_topic(servers, topic, {})} == {b"new"}


def test_ten_thousand_keys_are_in_the_partitions_of_javas_producer(servers: str, publisher: KafkaPublisher):
    ours, javas = (create_topic(servers, unique_name(), 12) for _ in range(2))
    keys = [f"order-{n}-{'ü' * (n % 7)}" for n in range(10_000)]
    batch = [make_message(ours, b"1", key=key) for key in keys]
    for start in range(0, len(batch), 2000):
        assert publisher.publish(batch[start : start + 2000]) == [ACCEPTED] * 2000
    options = ["--bootstrap-server", servers, "--topic", javas]
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=|"]
    producer = KAFKA.command("org.apache.kafka.tools.ConsoleProducer", *options, *properties)
    text = "".join(f"{key}|1\n" for key in keys).encode()
    subprocess.run(producer, input=text, capture_output=True, timeout=60, check=True)
    assert partitions(servers, ours) == partitions(servers, javas)


def partitions(servers: str, topic: str) -> dict[bytes, int]:
    return {record.key(): record.partition() for record in read_topic(servers, topic, {})}
