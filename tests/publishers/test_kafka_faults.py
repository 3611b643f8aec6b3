"""The Kafka publisher on its own cluster of Apache Kafka, whose brokers are killed, frozen and short of replicas."""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from django_outbox.brokers.kafka import KafkaPublisher
from django_outbox.messages import ACCEPTED, Message, Outcome, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.claimed import make_message
from tests.support.jars import KAFKA
from tests.support.kafka import tools
from tests.support.kafka.cluster import Broker, Cluster, running_cluster
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not KAFKA.is_usable, reason=KAFKA.remedy),
]

TIMEOUT = 6.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def healthy(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose brokers run again at the end."""
    yield cluster
    for broker in cluster.brokers:
        broker.thaw()
        assert broker.process is not None
        if broker.process.code is not None:
            broker.boot()
    cluster.wait()


@pytest.fixture
def publisher(healthy: Cluster) -> Iterator[KafkaPublisher]:
    publisher = KafkaPublisher("default", config={"bootstrap.servers": healthy.servers}, timeout=TIMEOUT)
    yield publisher
    publisher.close()


def create_topic(cluster: Cluster, partitions: int = 1, **config: Any) -> str:
    return tools.create_topic(cluster.servers, unique_name(), partitions, **config)


def messages(topic: str, first: int, count: int, keys: int = 1) -> list[Message]:
    return [make_message(topic, str(n).encode(), key=f"key-{n % keys}") for n in range(first, first + count)]


def leader_of(cluster: Cluster, topic: str) -> Broker:
    found = tools.admin(cluster.servers).list_topics(topic, timeout=60).topics[topic]
    return cluster.brokers[found.partitions[0].leader - 1]


def publish_all(publish: Callable[[Sequence[Message]], Sequence[Outcome]], left: list[Message]) -> None:
    """Publish messages one after the other until all are accepted; none may be rejected or use up an attempt."""
    deadline = time.monotonic() + 90
    while left:
        assert time.monotonic() < deadline, "the messages were not accepted in time"
        (outcome,) = publish(left[:1])
        if outcome is ACCEPTED:
            del left[0]
        else:
            assert outcome.kind in (OutcomeKind.UNANSWERED, OutcomeKind.DEFERRED), outcome
            assert not outcome.counted, outcome


def bodies(cluster: Cluster, topic: str) -> list[int]:
    """The bodies in the order of their arrival; one that was sent again counts once."""
    return [*dict.fromkeys(int(record.value()) for record in tools.read_topic(cluster.servers, topic, {}))]


def test_too_few_replicas_are_no_fault_of_a_message_and_hold_up_no_other_topic(
    healthy: Cluster, publisher: KafkaPublisher
):
    strict, lenient = create_topic(healthy, min_insync_replicas="3"), create_topic(healthy)
    assert publisher.publish(messages(strict, 0, 5)) == [ACCEPTED] * 5
    other = next(broker for broker in healthy.brokers if broker is not leader_of(healthy, strict))
    other.stop()
    outcomes = list(publisher.publish([*messages(strict, 5, 5), *messages(lenient, 0, 5, keys=5)]))
    if outcomes[5:] != [ACCEPTED] * 5:
        # The broker that is gone may have led the other topic.
        outcomes[5:] = publisher.publish(messages(lenient, 0, 5, keys=5))
    assert outcomes[5:] == [ACCEPTED] * 5
    assert not any(outcome is ACCEPTED or outcome.counted for outcome in outcomes[:5]), outcomes
    other.boot()
    healthy.wait()
    publish_all(publisher.publish, messages(strict, 5, 5))
    assert bodies(healthy, strict) == [*range(10)]


def test_an_outage_of_all_brokers_ends_by_itself(healthy: Cluster, publisher: KafkaPublisher):
    topic = create_topic(healthy)
    publish_all(publisher.publish, messages(topic, 0, 5))
    for broker in healthy.brokers:
        broker.kill()
    outcomes = publisher.publish(messages(topic, 5, 5))
    assert {outcome.kind for outcome in outcomes} == {OutcomeKind.UNANSWERED}
    for broker in healthy.brokers:
        broker.boot()
    healthy.wait()
    publish_all(publisher.publish, messages(topic, 5, 5))
    assert bodies(healthy, topic) == [*range(10)]


def test_a_topic_that_is_deleted_and_created_again_takes_messages(healthy: Cluster, publisher: KafkaPublisher):
    topic = create_topic(healthy)
    publish_all(publisher.publish, messages(topic, 0, 5))
    admin = tools.admin(healthy.servers)
    admin.delete_topics([topic])[topic].result(60)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")
    tools.create_topic(healthy.servers, topic, 1)

    def publish(batch: Sequence[Message]) -> Sequence[Outcome]:
        # Until the publisher has learned of the new topic, the message is retried.
        return [
            outcome if outcome is ACCEPTED else Outcome(OutcomeKind.DEFERRED, outcome.error, counted=False)
            for outcome in publisher.publish(batch)
        ]

    publish_all(publish, messages(topic, 5, 5))
    assert bodies(healthy, topic) == [*range(5, 10)]


def test_ten_thousand_keys_are_in_the_partitions_of_javas_producer(healthy: Cluster, publisher: KafkaPublisher):
    ours, javas = create_topic(healthy, 12), create_topic(healthy, 12)
    keys = [f"order-{n}-{'ü' * (n % 7)}" for n in range(10_000)]
    batch = [make_message(ours, b"1", key=key) for key in keys]
    for start in range(0, len(batch), 2000):
        assert publisher.publish(batch[start : start + 2000]) == [ACCEPTED] * 2000
    options = ["--bootstrap-server", healthy.servers, "--topic", javas]
    properties = ["--reader-property", "parse.key=true", "--reader-property", "key.separator=|"]
    producer = KAFKA.command("org.apache.kafka.tools.ConsoleProducer", *options, *properties)
    text = "".join(f"{key}|1\n" for key in keys).encode()
    subprocess.run(producer, input=text, capture_output=True, timeout=60, check=True)
    assert partitions(healthy, ours) == partitions(healthy, javas)


def partitions(cluster: Cluster, topic: str) -> dict[bytes, int]:
    return {record.key(): record.partition() for record in tools.read_topic(cluster.servers, topic, {})}
