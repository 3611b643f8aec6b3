"""The Kafka publisher on a cluster of three brokers: outcomes, order and outages."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from django_outbox.brokers import BatchRefused
from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.brokers.kafka.errors import MEANINGS, Blame
from django_outbox.messages import ACCEPTED, Message, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.kafka.mock import INIT_PRODUCER_ID, PRODUCE, MockCluster, mock_cluster
from tests.support.kafka.tools import read_topic
from tests.support.outcomes import kinds, only
from tests.support.publishers import closing_all
from tests.support.waiting import eventually

MakePublisher = Callable[..., KafkaPublisher]

ONE_BY_ONE = {"batch.num.messages": 1}
"""Each request has one record."""


@pytest.fixture
def cluster() -> Iterator[MockCluster]:
    cluster = mock_cluster()
    yield cluster
    cluster.stop_failing()


@pytest.fixture
def topic(cluster: MockCluster) -> str:
    name = unique_name()
    cluster.create_topic(name)
    return name


@pytest.fixture
def make_publisher(cluster: MockCluster) -> Iterator[MakePublisher]:
    def construct(config: dict[str, Any] | None = None, **options: Any) -> KafkaPublisher:
        given = {"bootstrap.servers": cluster.servers, **(config or {})}
        return KafkaPublisher("default", config=given, **{"timeout": 5.0, **options})

    with closing_all(construct) as make:
        yield make


def several(topic: str, count: int, key: str = "order-7") -> list[Message]:
    return [make_message(topic, str(n).encode(), key=key) for n in range(count)]


def bodies(cluster: MockCluster, topic: str) -> list[int]:
    return [int(record.value()) for record in read_topic(cluster.servers, topic, {})]


# Partitions


def test_messages_of_a_key_are_in_one_partition_and_those_without_a_key_in_all(cluster, topic, make_publisher):
    publisher = make_publisher({"sticky.partitioning.linger.ms": 0})
    assert publisher.publish([*several(topic, 50), *several(topic, 200, key="")]) == [ACCEPTED] * 250
    records = read_topic(cluster.servers, topic, {})
    assert len({record.partition() for record in records if record.key()}) == 1
    assert {record.partition() for record in records if not record.key()} == {0, 1, 2, 3}


# What Kafka refuses


REFUSALS = {code: meaning for code, meaning in MEANINGS.items() if code > 0 and meaning.blame is Blame.BATCH}


@pytest.mark.parametrize("code", REFUSALS, ids=[KafkaError(code).name() for code in REFUSALS])
def test_a_batch_that_kafka_refuses_as_a_whole_is_refused(cluster, topic, make_publisher, code):
    publisher = make_publisher({"linger.ms": 200, "retry.backoff.ms": 10})
    # librdkafka itself retries a record that was damaged on its way; then the batch is accepted.
    cluster.fail(PRODUCE, code)
    messages = [*several(topic, 3), *several(topic, 1, key="order-8")]
    if code == KafkaError.INVALID_MSG:
        assert publisher.publish(messages) == [ACCEPTED] * 4
        return
    with pytest.raises(BatchRefused) as raised:
        publisher.publish(messages)
    assert raised.value.permanent is REFUSALS[code].permanent
    assert raised.value.error_class == f"kafka.{REFUSALS[code].word}"
    assert list(raised.value.outcomes)[:3] == [None] * 3
    assert raised.value.outcomes[3] in {None, ACCEPTED}
    assert publisher.publish(messages) == [ACCEPTED] * 4


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, (OutcomeKind.REJECTED, "kafka.too_large")),
        (KafkaError.SECURITY_DISABLED, (OutcomeKind.DEFERRED, "kafka.security_disabled")),
    ],
    ids=["known", "unknown"],
)
def test_a_refused_message_that_is_alone_has_an_outcome(cluster, topic, make_publisher, code, expected):
    cluster.fail(PRODUCE, code)
    outcome = only(make_publisher().publish(several(topic, 1)))
    assert (outcome.kind, outcome.error_class) == expected


TOPIC_ERRORS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: (OutcomeKind.DEFERRED, "kafka.unknown_topic", "create the topic"),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (OutcomeKind.DEFERRED, "kafka.not_authorized", "permission to write"),
    KafkaError.TOPIC_EXCEPTION: (OutcomeKind.REJECTED, "kafka.invalid_topic", "up to 249 letters"),
}


@pytest.mark.parametrize("code", TOPIC_ERRORS, ids=[KafkaError(code).name() for code in TOPIC_ERRORS])
def test_a_topic_that_takes_no_messages_does_not_hold_up_others(cluster, topic, make_publisher, code):
    elsewhere = unique_name()
    cluster.create_topic(elsewhere)
    cluster.set_topic_error(elsewhere, code)
    # librdkafka waits a twelfth of it for the broker's answer before it takes the topic for unknown.
    publisher = make_publisher(timeout=10.0)
    messages = [*several(topic, 1), *several(elsewhere, 1, key="order-8"), *several(topic, 3, key="")]
    first, second, *others = publisher.publish(messages)
    assert [first, *others] == [ACCEPTED] * 4
    assert (second.kind, second.error_class) == TOPIC_ERRORS[code][:2]
    assert TOPIC_ERRORS[code][2] in second.error
    cluster.set_topic_error(elsewhere, 0)
    eventually(lambda: publisher.publish(messages[1:2]) == [ACCEPTED], "librdkafka has asked for the topic again")


def test_a_message_whose_topic_cannot_exist_is_rejected(topic, make_publisher):
    accepted, rejected = make_publisher().publish([*several(topic, 1), *several("order created", 1)])
    assert (accepted, rejected.kind, rejected.error_class) == (ACCEPTED, OutcomeKind.REJECTED, "kafka.invalid_topic")


@pytest.mark.parametrize("code", [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION])
def test_a_topic_may_be_refused_when_messages_are_written(cluster, topic, make_publisher, code):
    elsewhere = unique_name()
    publisher = make_publisher({"linger.ms": 200})
    assert publisher.publish([*several(topic, 1), *several(elsewhere, 1, key="order-8")]) == [ACCEPTED] * 2
    for partition in range(4):
        cluster.fail_partition(elsewhere, partition, PRODUCE, code)
    outcomes = publisher.publish([*several(topic, 2), *several(elsewhere, 2, key="order-8")])
    assert outcomes[:2] == [ACCEPTED] * 2
    assert {(each.kind, each.error_class) for each in outcomes[2:]} == {TOPIC_ERRORS[code][:2]}


# Producers that end, and outages


LOST = (
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.UNKNOWN_PRODUCER_ID,
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.INVALID_PRODUCER_ID_MAPPING,
)


@pytest.mark.parametrize("code", LOST, ids=[KafkaError(code).name() for code in LOST])
def test_a_producer_whose_sequence_is_lost_is_replaced_and_its_messages_are_sent_again(
    cluster, topic, make_publisher, code
):
    publisher = make_publisher(ONE_BY_ONE)
    cluster.fail(PRODUCE, KafkaError.NO_ERROR, KafkaError.NO_ERROR, code)
    assert publisher.publish(several(topic, 10)) == [ACCEPTED] * 10
    assert {*bodies(cluster, topic)} == {*range(10)}


def test_a_message_that_is_not_confirmed_while_others_are_is_set_aside(cluster, topic, make_publisher):
    elsewhere = unique_name()
    cluster.create_topic(elsewhere)
    for partition in range(4):
        cluster.set_leader(topic, partition, 1)
        cluster.set_leader(elsewhere, partition, 2)
    publisher = make_publisher(timeout=24.0)
    assert publisher.publish([*several(topic, 1, key=""), *several(elsewhere, 1, key="")]) == [ACCEPTED] * 2
    with cluster.down(2):
        began = time.monotonic()
        accepted, outcome = publisher.publish([*several(topic, 1, key=""), *several(elsewhere, 1, key="")])
        # After a sixth of the timeout.
        assert time.monotonic() - began < 20
    assert accepted == ACCEPTED
    assert (outcome.kind, outcome.counted, outcome.error_class) == (OutcomeKind.DEFERRED, False, "kafka.stalled")


def test_messages_that_brokers_which_respond_do_not_confirm_do_not_pass_for_an_outage(cluster, topic, make_publisher):
    """After an outage a relay tries the oldest messages alone, which may all be for one topic."""
    for partition in range(4):
        cluster.set_leader(topic, partition, 2)
    publisher = make_publisher(timeout=4.0)
    assert publisher.publish(several(topic, 1, key="")) == [ACCEPTED]
    with cluster.down(2):
        outcomes = publisher.publish(several(topic, 3, key=""))
    found = {(outcome.kind, outcome.counted, outcome.error_class) for outcome in outcomes}
    assert found == {(OutcomeKind.DEFERRED, False, "kafka.stalled")}


def test_a_topic_that_is_missing_is_waited_for_only_once(cluster, topic, make_publisher):
    elsewhere = unique_name()
    cluster.set_topic_error(elsewhere, KafkaError.UNKNOWN_TOPIC_OR_PART)
    publisher = make_publisher(timeout=36.0)
    began = time.monotonic()
    for _ in range(5):
        missing, accepted = publisher.publish([*several(elsewhere, 1, key=""), *several(topic, 1, key="")])
        assert (missing.error_class, accepted) == ("kafka.unknown_topic", ACCEPTED)
    # Only the first one waits, for 3 seconds.
    assert time.monotonic() - began < 12
    cluster.set_topic_error(elsewhere, 0)
    eventually(lambda: publisher.publish(several(elsewhere, 1, key="")) == [ACCEPTED])


def test_an_error_of_the_broker_is_not_the_fault_of_a_message(cluster, topic, make_publisher):
    cluster.fail(PRODUCE, KafkaError.NETWORK_EXCEPTION)
    assert only(make_publisher().publish(several(topic, 1))).kind is OutcomeKind.UNANSWERED


def test_a_user_who_may_not_use_idempotent_producers_is_told(cluster, topic, make_publisher):
    cluster.fail(INIT_PRODUCER_ID, *[KafkaError.CLUSTER_AUTHORIZATION_FAILED] * 3)
    outcome = only(make_publisher(timeout=2.0).publish(several(topic, 1)))
    assert outcome.kind is OutcomeKind.UNANSWERED
    assert "IdempotentWrite" in outcome.error


def test_an_outage_ends_at_the_timeout_and_nothing_is_sent_afterwards(cluster, topic, make_publisher):
    publisher = make_publisher(timeout=4.0)
    assert publisher.publish(several(topic, 1)) == [ACCEPTED]
    began = time.monotonic()
    with cluster.down():
        assert kinds(publisher.publish(several(topic, 100))) == [OutcomeKind.UNANSWERED] * 100
    assert time.monotonic() - began < 30
    assert publisher.publish([make_message(topic, b"7")]) == [ACCEPTED]
    assert sorted(bodies(cluster, topic)) == [0, 7]


def test_a_queue_that_is_smaller_than_a_batch_is_enough(topic, make_publisher):
    publisher = make_publisher({"queue.buffering.max.messages": 10})
    assert publisher.publish(several(topic, 100)) == [ACCEPTED] * 100
