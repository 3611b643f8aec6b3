"""Topics of Kafka: groups, partitions, and records of other programs."""

import datetime
import itertools
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaError

from django_outbox.brokers import Unavailable
from django_outbox.brokers.kafka import KafkaConsumer
from django_outbox.brokers.kafka.connection import ConnectionState
from django_outbox.brokers.kafka.consumer import LEAVE_TIMEOUT, KafkaConsumerConnection
from django_outbox.exceptions import RelayUnavailable
from django_outbox.models import Status
from django_outbox.utils.threads import Threads
from tests.conftest import ALIASES
from tests.inbox.conftest import payloads, read_all, running, stored
from tests.inbox.sources.kafka import KafkaSource, MockKafkaSource
from tests.support.kafka.mock import OFFSET_COMMIT
from tests.support.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True, databases=ALIASES)

PATIENCE = 90
"""Seconds for several rebalances, each of which may wait for a session to end."""


@pytest.fixture
def source(request: pytest.FixtureRequest) -> Iterator[KafkaSource]:
    source: KafkaSource = getattr(request, "param", partial(KafkaSource, partitions=4))()
    yield source
    source.close()


on_a_mock = pytest.mark.parametrize("source", [MockKafkaSource], indirect=True, ids=["mock"])
"""Runs a test whose broker refuses what it is told to refuse."""


# Groups


def test_members_of_a_group_share_the_partitions_and_keep_the_order_of_each_key(source, make_inbox):
    numbers = itertools.count()

    def send_until_both_receive() -> bool:
        source.send(*itertools.islice(numbers, 8), key=f"order-{next(numbers) % 8}")
        return bool(first.tally.received and second.tally.received)

    inboxes = (make_inbox("postgresql", batch_size=5), make_inbox("postgresql", batch_size=7))
    with running(inboxes[0]) as first, running(inboxes[1]) as second:
        eventually(send_until_both_receive, "both members have received something", seconds=PATIENCE)
        eventually(lambda: source.unsettled() == 0, "all offsets are committed", seconds=PATIENCE)
    assert first.tally.received + second.tally.received >= len(payloads("postgresql"))
    for key in range(8):
        mine = [message.payload for message in stored("postgresql") if message.key == f"order-{key}"]
        assert mine == sorted(mine)
    assert len(payloads("postgresql")) == next(numbers) // 9 * 8


def test_a_consumer_ends_in_time_while_the_brokers_are_down(source):
    """librdkafka waits for a broker in two of three cases, so there are several consumers."""
    config = {**source.options["config"], "bootstrap.servers": source.gateway.servers}
    groups = [f"{source.group}-{n}" for n in range(4)]
    consumers = [KafkaConsumer("billing", **source.options | {"config": config, "group": group}) for group in groups]
    source.send(*range(20))
    for consumer in consumers:
        consumer.open()
        left = 20

        def settle_all(consumer: KafkaConsumer = consumer) -> bool:
            nonlocal left
            batch = consumer.receive(0.1)
            consumer.settle(batch, ())
            left -= len(batch)
            return not left

        eventually(settle_all)
    source.gateway.go_down()
    for consumer in consumers:
        with pytest.raises(Unavailable):
            eventually(partial(consumer.receive, 0.1))
    threads = Threads()
    for consumer in consumers:
        threads.start(consumer.close, name="close")
    assert threads.wait(2 * LEAVE_TIMEOUT), "a consumer did not end"


@on_a_mock
def test_offsets_whose_commit_fails_are_committed_again_although_no_record_follows(source, make_inbox):
    with running(make_inbox()):
        source.send(1)
        eventually(lambda: not source.unsettled(), "the first offset is committed")
        source.cluster.fail(OFFSET_COMMIT, KafkaError.REBALANCE_IN_PROGRESS)
        source.send(2)
        eventually(lambda: payloads("default") == [1, 2])
        eventually(lambda: not source.unsettled(), "the second one is committed, too")


@on_a_mock
def test_an_older_offset_that_is_committed_after_a_newer_one_is_not_the_last(source, make_inbox):
    """librdkafka repeats a commit after a wait, and sends later commits meanwhile."""
    waits = {"retry.backoff.ms": 500, "retry.backoff.max.ms": 500}
    with running(make_inbox(config={**source.options["config"], **waits}, batch_size=1)):
        source.send(1)
        eventually(lambda: not source.unsettled(), "the first offset is committed")
        source.cluster.fail(OFFSET_COMMIT, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
        source.send(2, 3)
        eventually(lambda: payloads("default") == [1, 2, 3])
        # The first of these two commits is repeated in this time.
        time.sleep(1.5)
        eventually(lambda: not source.unsettled(), "all offsets are committed")


@on_a_mock
def test_offsets_that_are_refused_for_good_are_logged_once(source, make_inbox, caplog):
    with running(make_inbox()):
        source.send(1)
        eventually(lambda: not source.unsettled(), "the first offset is committed")
        source.cluster.fail(OFFSET_COMMIT, *[KafkaError.GROUP_AUTHORIZATION_FAILED] * 5)
        source.send(2)
        eventually(lambda: not source.unsettled(), "the second one is committed when Kafka takes it")
    (refused,) = (each.message for each in caplog.records if each.event == "consumer.commit_refused")
    assert "group authorization failed" in refused.lower()


# Records


def test_a_record_of_another_program_is_stored(source, make_inbox):
    # OpenTelemetry's instrumentation of producers appends a second `traceparent`.
    headers = [("trace", b"1"), ("trace", b"2"), ("none", None)]
    source.write({"value": b'{"a": 1}', "key": b"order-7", "headers": headers, "timestamp": 10**12})
    read_all(make_inbox(), source)
    (message,) = stored("default")
    assert (message.type, message.topic, message.key) == (source.name, "", "order-7")
    assert message.headers == {"trace": "1", "none": None}
    assert message.occurred_at == datetime.datetime.fromtimestamp(10**9, datetime.timezone.utc)


def test_a_record_without_a_value_has_the_payload_null(source, make_inbox):
    source.write({"value": None, "key": b"order-7"})
    read_all(make_inbox(batch_size=2), source)
    assert payloads("default") == [None]


def test_a_record_whose_key_is_not_text_is_stored_as_failed(source, make_inbox):
    source.write({"value": b"1", "key": b"\xff\xfe"})
    read_all(make_inbox(), source)
    (message,) = stored("default")
    assert message.status is Status.FAILED
    assert "its key or headers are not text in UTF-8" in message.error


@on_a_mock
def test_a_topic_that_brokers_hear_of_only_after_the_group_has_formed_is_read(source, make_inbox, monkeypatch):
    source.send(*range(8))
    find, note = ConnectionState.list_topics, KafkaConsumerConnection._on_assign
    assigned: list[int] = []

    def find_and_forget(self, *arguments):
        found = find(self, *arguments)
        if not assigned:
            source.cluster.set_topic_error(source.name, KafkaError.UNKNOWN_TOPIC_OR_PART)
        return found

    def note_and_hear(self, client, partitions):
        assigned.append(len(partitions))
        source.cluster.set_topic_error(source.name, 0)
        note(self, client, partitions)

    monkeypatch.setattr(ConnectionState, "list_topics", find_and_forget)
    monkeypatch.setattr(KafkaConsumerConnection, "_on_assign", note_and_hear)
    # With this one, librdkafka ignores a subscription that is the same as before.
    config = {**source.options["config"], "partition.assignment.strategy": "cooperative-sticky"}
    read_all(make_inbox("postgresql", config=config), source)
    assert sorted(payloads("postgresql")) == [*range(8)]
    assert assigned == [0, source.partitions]


@on_a_mock
def test_a_member_that_is_one_too_many_joins_again_a_few_times_only(source, monkeypatch):
    monkeypatch.setattr("django_outbox.brokers.kafka.consumer.REJOIN_AFTER", (0.1,))
    joins: Counter[KafkaConsumerConnection] = Counter()
    join = KafkaConsumerConnection._join

    def join_and_count(self):
        joins[self] += 1
        join(self)

    monkeypatch.setattr(KafkaConsumerConnection, "_join", join_and_count)
    source.send(1)
    members = [KafkaConsumer(name, **source.options) for name in ("billing", "shipping")]

    def are_done() -> bool:
        for member in members:
            member.settle(member.receive(0.02), ())
        return max(joins.values()) == 2

    try:
        for member in members:
            member.open()
        eventually(are_done)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            are_done()
        assert max(joins.values()) == 2
    finally:
        for member in members:
            member.close()


# Refusals


def test_a_topic_that_does_not_exist_is_named(make_inbox):
    with pytest.raises(RelayUnavailable, match="topic 'missing': Broker: Unknown topic or partition"):
        make_inbox(topics="missing", arguments={"idle_exit": 60}).run()


@on_a_mock
def test_a_topic_that_may_not_be_read_is_an_outage(source, make_inbox):
    source.cluster.set_topic_error(source.name, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(RelayUnavailable, match="Topic authorization failed"):
        make_inbox(arguments={"idle_exit": 60}).run()
