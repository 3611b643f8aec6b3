"""The Kafka publisher on a real server, whose address is in KAFKA_URL. `tests.run` prints whether there is one."""

import os
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, Verdict
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.kafka.tools import read_topic

SERVERS = os.environ.get("KAFKA_URL", "").removeprefix("kafka://")

pytestmark = pytest.mark.skipif(not SERVERS, reason="KAFKA_URL is not set")


@pytest.fixture
def publisher() -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher("default", config={"bootstrap.servers": SERVERS})
    yield publisher
    publisher.close()


def create_topic(**config: str) -> str:
    admin, name = AdminClient({"bootstrap.servers": SERVERS}), unique_name()
    admin.create_topics([NewTopic(name, num_partitions=4, replication_factor=1, config=config)])[name].result(30)
    # Another broker may not know it yet.
    time.sleep(1)
    return name


def test_messages_arrive_once_and_in_the_order_of_their_keys(publisher):
    topic = create_topic()
    messages = [make_message(topic, str(n).encode(), key=f"order-{n % 50}") for n in range(5000)]
    for start in range(0, 5000, 50):
        assert publisher.publish(messages[start : start + 50]) == [ACCEPTED] * 50
    records = read_topic(SERVERS, topic, {})
    assert len(records) == 5000
    for key in {message.key for message in messages}:
        arrived = [record.value() for record in records if record.key() == key.encode()]
        assert arrived == [message.payload for message in messages if message.key == key]


def test_a_message_that_the_broker_finds_too_large_is_rejected(publisher):
    topic = create_topic(**{"max.message.bytes": "10000"})
    (outcome,) = publisher.publish([make_message(topic, b'"' + b"x" * 20_000 + b'"')])
    assert (outcome.verdict, outcome.error_class) == (Verdict.REJECTED, "kafka.too_large")
    assert publisher.publish([make_message(topic)]) == [ACCEPTED]


def test_a_compacted_topic_refuses_a_message_without_a_key(publisher):
    topic = create_topic(**{"cleanup.policy": "compact"})
    accepted, refused = publisher.publish([make_message(topic, key="order-1"), make_message(topic)])
    assert accepted == ACCEPTED
    assert (refused.verdict, refused.error_class) == (Verdict.REJECTED, "kafka.invalid_record")
