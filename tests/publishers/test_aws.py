"""The publisher for Amazon SQS, with the answers of AWS that decide what becomes of a message.

moto and ElasticMQ stand for AWS (`tests.support.aws.server`). They do not throttle and seldom fail an entry, so these
answers come from a server in front of moto (`tests.support.aws.answers`).
"""

from contextlib import closing

import pytest

from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.aws import ElasticMQSubject, FIFOSubject, SNSSubject, SQSSubject
from tests.support.aws.answers import BATCH, AwsAnswers, Failures, Queue, Raw, Refusal
from tests.support.claimed import AGAIN, make_message
from tests.support.jars import ELASTICMQ
from tests.support.outcomes import rejected, summary, waiting

pytest_plugins = ["tests.support.aws.fixtures"]


# Requests


def test_ten_messages_are_sent_in_a_request_and_requests_are_in_flight_together(queue: Queue, aws: AwsAnswers):
    aws.delay = 1.0
    assert queue.make(concurrency=3).publish(queue.messages(35)) == [ACCEPTED] * 35
    assert sorted(len(each.entries) for each in aws.batches()) == [5, 10, 10, 10]
    assert aws.in_flight == 3


def test_a_request_stays_below_the_limit_in_bytes(queue: Queue, aws: AwsAnswers):
    small, large = ([make_message(queue.topic, b"1" * size)] for size in (1000, 4000))
    *accepted, too_large = queue.make(max_message_bytes=4096).publish(small * 10 + large)
    assert accepted == [ACCEPTED] * 10
    assert [len(each.entries) for each in aws.batches()].count(3) == 3
    assert summary(too_large) == rejected("aws.too_large")
    assert "max_message_bytes is 4,096" in too_large.error


def test_headers_that_no_attribute_could_carry_arrive(aws: AwsAnswers):
    with closing(SQSSubject()) as subject:
        headers = {"a b": "\x01", "": "empty name", "n": 2**70, "list": [None, 1.5], "AWS.x": "", "traceparent": "\x02"}
        publisher = subject.publisher(endpoint_url=aws.url)
        assert publisher.publish([make_message(subject.topic, headers=headers)]) == [ACCEPTED]
        (received,) = subject.received()
        assert received.headers == headers
    (entry,) = aws.batches()[0].entries
    assert "traceparent" not in entry["MessageAttributes"]


# FIFO queues


def test_messages_of_a_key_are_a_group_and_those_without_a_key_are_groups_of_their_own(aws: AwsAnswers):
    with closing(FIFOSubject()) as subject:
        publisher = subject.publisher(endpoint_url=aws.url)
        messages = [make_message(subject.topic, key=key) for key in ("order-1", "", "ä" * 10, "k" * 129)]
        assert publisher.publish(messages) == [ACCEPTED] * 4
        (batch,) = aws.batches()
        groups = [each["MessageGroupId"] for each in batch.entries]
        assert groups[:2] == ["order-1", messages[1].message_id]
        assert all(each.startswith("sha256-") and len(each) <= 128 for each in groups[2:])
        assert [each["MessageDeduplicationId"] for each in batch.entries] == [each.message_id for each in messages]


def test_a_fifo_queue_keeps_messages_of_a_key_in_order_and_drops_those_that_are_sent_again():
    with closing(ElasticMQSubject() if ELASTICMQ.is_usable else FIFOSubject()) as subject:
        publisher = subject.publisher()
        payloads = [b"1", b"2" * subject.largest, b"3"]
        messages = subject.messages(*payloads, key="order-1")
        again = messages[0]._replace(headers=AGAIN)
        dead = messages[0]._replace(headers={**AGAIN, "outbox-publisher": "größe" * 12})
        for message in (*messages, *messages, again, again, dead, dead):
            assert publisher.publish([message]) == [ACCEPTED]
        assert [each.body for each in subject.received()] == [*payloads, b"1", b"1"]


# Topics


def test_a_topic_delivers_to_its_queues_and_is_unavailable_in_an_outage():
    with closing(SNSSubject()) as subject:
        publisher = subject.publisher(timeout=2.0)
        assert publisher.prepare() == ""
        payloads = [b"1", b"2" * subject.largest]
        messages = subject.messages(*payloads, type="order.größe", key="Schlüssel-1", headers={"tenant": "acme"})
        accepted, poison, largest = publisher.publish([messages[0], subject.poison(), messages[1]])
        assert accepted is largest is ACCEPTED
        assert summary(poison) == rejected("aws.too_large")
        received = [(each.message_id, each.body, each.type, each.key, each.headers) for each in subject.received()]
        assert sorted(received) == sorted(
            (each.message_id, each.payload, each.type, each.key, each.headers) for each in messages
        )
        subject.go_down()
        (outcome,) = publisher.publish(subject.messages(b"3"))
        assert outcome.kind is OutcomeKind.UNANSWERED
        assert publisher.prepare()


# Entries that fail


def test_an_entry_that_is_refused_for_good_is_rejected_and_the_others_are_accepted(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Failures({1: ("InvalidMessageContents", True), 2: ("SomethingNew", True)}))
    outcomes = queue.make().publish(queue.messages(4))
    assert outcomes[0] is outcomes[3] is ACCEPTED
    assert [summary(each) for each in outcomes[1:3]] == [rejected("aws.refused")] * 2
    assert outcomes[1].error == "InvalidMessageContents: the reason"


def test_an_entry_that_aws_fails_is_deferred_if_others_for_its_destination_are_accepted(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Failures({0: ("InternalError", False)}))
    failed, accepted = queue.make().publish(queue.messages(2))
    assert (failed.kind, failed.counted, failed.error_class) == (OutcomeKind.DEFERRED, True, "aws.internal")
    assert accepted is ACCEPTED


def test_entries_are_set_aside_if_aws_fails_them_all(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Failures({0: ("InternalError", False), 1: ("SomethingNew", False)}))
    outcomes = queue.make().publish(queue.messages(2))
    assert [(each.kind, each.counted) for each in outcomes] == [(OutcomeKind.DEFERRED, False)] * 2


def test_an_entry_without_a_result_is_not_accepted(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Raw(200, b"{}"))
    (outcome,) = queue.make().publish(queue.messages(1))
    assert outcome.kind is not OutcomeKind.ACCEPTED


def test_throttled_entries_are_set_aside_and_nothing_more_is_sent_to_their_queue(queue: Queue, aws: AwsAnswers):
    throttled = dict.fromkeys(range(1, 10), ("ThrottlingException", True))
    aws.answer(BATCH, Failures(throttled))
    outcomes = queue.make(concurrency=1).publish(queue.messages(25))
    assert outcomes[0] is ACCEPTED
    assert {summary(each) for each in outcomes[1:]} == {waiting("aws.throttled")}
    assert {each.retry_after for each in outcomes[1:]} == {2.0}
    assert len(aws.batches()) == 1


# Queues


def test_a_message_for_a_queue_that_does_not_exist_is_rejected_with_the_remedy(queue: Queue):
    missing = [make_message("outbox-missing"), make_message("", type="order.created")]
    publisher, (message,) = queue.make_for_topics(), queue.messages(1)
    assert publisher.name_destination(message) == queue.url
    first, *left, last = publisher.publish([message, *missing, *queue.messages(1)])
    assert first is last is ACCEPTED
    assert {summary(each) for each in left} == {rejected("aws.missing")}
    assert all("create it" in each.error for each in left)


def test_a_missing_queue_of_all_messages_is_an_outage_with_the_remedy(queue: Queue):
    outcomes = queue.make(f"{queue.url}-missing").publish(queue.messages(2))
    assert [each.kind for each in outcomes] == [OutcomeKind.UNANSWERED] * 2
    assert "create it" in outcomes[0].error


def test_an_action_that_is_not_allowed_does_not_keep_the_relay_from_sending(queue: Queue, aws: AwsAnswers):
    aws.answer("ListQueues", Refusal("AccessDenied", status=403))
    assert queue.make().prepare() == ""


def test_missing_credentials_profiles_and_regions_are_named(queue: Queue, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "Unable to locate credentials; check the credentials" in queue.make(session=None).prepare()
    assert "specify a region; check" in queue.make(region=None).prepare()
    publisher = queue.make(session={"profile_name": "outbox-missing"})
    assert "profile (outbox-missing) could not be found" in publisher.prepare()
    (outcome,) = publisher.publish(queue.messages(1))
    assert outcome.kind is OutcomeKind.UNANSWERED
