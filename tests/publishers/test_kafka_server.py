"""The Kafka publisher on Kafka's own brokers. `tests.run` prints whether there are any."""

from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers import BatchRefused
from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.kafka import tools
from tests.support.kafka.shared import MOCK_REASON, is_real, kafka_servers

pytestmark = pytest.mark.skipif(not is_real(), reason=MOCK_REASON)


@pytest.fixture
def publisher() -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher("default", config={"bootstrap.servers": kafka_servers()})
    yield publisher
    publisher.close()


def create_topic(**config: Any) -> str:
    return tools.create_topic(kafka_servers(), unique_name(), **config)


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
    assert (refused.kind, refused.error_class) == (OutcomeKind.REJECTED, "kafka.invalid_record")


def test_a_message_beyond_the_limit_of_the_brokers_is_rejected_alone():
    topic = create_topic(partitions=1)
    raised = {"bootstrap.servers": kafka_servers(), "message.max.bytes": 3_000_000}
    publisher = KafkaPublisher("default", config=raised)
    large = make_message(topic, b'"' + b"x" * 2_000_000 + b'"')
    outcomes = publisher.publish([make_message(topic), large, make_message(topic)])
    publisher.close()
    assert [outcome is ACCEPTED for outcome in outcomes] == [True, False, True]
    assert (outcomes[1].kind, outcomes[1].error_class) == (OutcomeKind.REJECTED, "kafka.too_large")
