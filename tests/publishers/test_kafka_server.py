"""The Kafka publisher on Kafka's own brokers. `tests.run` prints whether there are any."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers import BatchRefused
from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, Verdict
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.kafka import tools
from tests.support.kafka.shared import MOCK_REASON, is_real, kafka_servers
from tests.support.kafka.tools import read_topic

pytestmark = pytest.mark.skipif(not is_real(), reason=MOCK_REASON)


@pytest.fixture
def publisher() -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher("default", config={"bootstrap.servers": kafka_servers()})
    yield publisher
    publisher.close()


def create_topic(**config: Any) -> str:
    return tools.create_topic(kafka_servers(), unique_name(), **config)


def test_messages_arrive_once_and_in_the_order_of_their_keys(publisher):
    topic = create_topic()
    messages = [make_message(topic, str(n).encode(), key=f"order-{n % 50}") for n in range(5000)]
    for start in range(0, 5000, 50):
        assert publisher.publish(messages[start : start + 50]) == [ACCEPTED] * 50
    records = read_topic(kafka_servers(), topic, {})
    assert len(records) == 5000
    for key in {message.key for message in messages}:
        arrived = [record.value() for record in records if record.key() == key.encode()]
        assert arrived == [message.payload for message in messages if message.key == key]


def test_a_message_that_the_broker_finds_too_large_is_rejected(publisher):
    topic = create_topic(max_message_bytes="10000")
    (outcome,) = publisher.publish([make_message(topic, b'"' + b"x" * 20_000 + b'"')])
    assert (outcome.verdict, outcome.error_class) == (Verdict.REJECTED, "kafka.too_large")
    assert publisher.publish([make_message(topic)]) == [ACCEPTED]


def test_a_compacted_topic_refuses_a_message_without_a_key():
    topic = create_topic(partitions=1, cleanup_policy="compact")
    publisher = KafkaPublisher("default", config={"bootstrap.servers": kafka_servers(), "linger.ms": 200})
    messages = [make_message(topic, key="order-1"), make_message(topic)]
    # The broker names the record, but librdkafka blames all of the batch if it is a single one.
    with pytest.raises(BatchRefused) as raised:
        publisher.publish(messages)
    assert raised.value.outcomes == [None, None]
    (accepted,), (refused,) = (publisher.publish([message]) for message in messages)
    publisher.close()
    assert accepted == ACCEPTED
    assert (refused.verdict, refused.error_class) == (Verdict.REJECTED, "kafka.invalid_record")


def test_a_message_beyond_the_limit_of_the_brokers_is_rejected_alone():
    topic = create_topic(partitions=1)
    raised = {"bootstrap.servers": kafka_servers(), "message.max.bytes": 3_000_000}
    publisher = KafkaPublisher("default", config=raised)
    large = make_message(topic, b'"' + b"x" * 2_000_000 + b'"')
    outcomes = publisher.publish([make_message(topic), large, make_message(topic)])
    publisher.close()
    assert [outcome is ACCEPTED for outcome in outcomes] == [True, False, True]
    assert (outcomes[1].verdict, outcomes[1].error_class) == (Verdict.REJECTED, "kafka.too_large")
