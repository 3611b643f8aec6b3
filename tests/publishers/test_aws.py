"""The publishers for Amazon SQS and Amazon SNS, with the answers of AWS that decide what becomes of a message.

moto and ElasticMQ stand for AWS (`tests.support.aws.server`). They do not throttle and seldom fail an entry, so these
answers come from a server in front of moto (`tests.support.aws.answers`).
"""

import json
from contextlib import closing
from typing import Any

import pytest

from django_outbox.brokers.aws.encoding import group_id
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.aws import FIFOSubject, SNSSubject, SQSSubject
from tests.support.aws.answers import AwsAnswers, Failures, Raw
from tests.support.aws.cases import Case
from tests.support.claimed import make_message

pytest_plugins = ["tests.support.aws.fixtures"]


# Requests


def test_ten_messages_are_sent_in_a_request_and_requests_are_in_flight_together(case: Case, aws: AwsAnswers):
    aws.delay = 1.0
    assert case.make(concurrency=3).publish(case.messages(35)) == [ACCEPTED] * 35
    assert sorted(len(each.entries) for each in aws.batches()) == [5, 10, 10, 10]
    assert aws.in_flight == 3


def test_a_request_stays_below_the_limit_in_bytes(case: Case, aws: AwsAnswers):
    messages = [make_message(case.topic, b'"' + b"x" * 1000 + b'"') for _ in range(10)]
    assert case.make(max_message_bytes=4096).publish(messages) == [ACCEPTED] * 10
    assert [len(each.entries) for each in aws.batches()].count(3) == 3


def test_a_message_beyond_the_limit_is_rejected_alone(case: Case):
    small, large = make_message(case.topic), make_message(case.topic, b'"' + b"x" * 4000 + b'"')
    outcomes = case.make(max_message_bytes=4096).publish([small, large, small])
    assert [each.kind for each in outcomes] == [OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.ACCEPTED]
    assert outcomes[1].error_class == "aws.too_large"
    assert "max_message_bytes is 4,096" in outcomes[1].error


@pytest.mark.parametrize(
    "fields",
    [{"payload": '"\uffff"'.encode()}, {"key": "a\x01"}, {"type": "a\ufffe"}],
)
def test_a_character_that_aws_does_not_take_is_rejected_before_anything_is_sent(
    case: Case, aws: AwsAnswers, fields: dict[str, Any]
):
    (outcome,) = case.make().publish([make_message(case.topic, **fields)])
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.unencodable")
    assert not aws.batches()


def test_headers_that_no_attribute_could_carry_arrive():
    with closing(SQSSubject()) as subject:
        headers = {"a b": "\x01", "": "empty name", "n": 2**70, "list": [None, 1.5], "AWS.x": "", "traceparent": "\x02"}
        assert subject.publisher().publish([make_message(subject.topic, headers=headers)]) == [ACCEPTED]
        (received,) = subject.received()
        assert received.headers == headers


@pytest.mark.parametrize("subject_class", [SQSSubject, SNSSubject])
def test_a_cloudevent_arrives_as_one_json_object(subject_class: type[SQSSubject]):
    with closing(subject_class()) as subject:
        publisher = subject.publisher(format="cloudevents", source="/shop")
        (message,) = subject.messages(b'{"a":  1}')
        assert publisher.publish([message]) == [ACCEPTED]
        (received,) = subject.received()
        event = json.loads(received.body)
        assert (event["id"], event["source"], event["data"]) == (message.message_id, "/shop", {"a": 1})
        assert b'"data": {"a":  1}}' in received.body


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


def test_a_message_that_is_sent_again_arrives_once_in_a_fifo_queue():
    with closing(FIFOSubject()) as subject:
        publisher = subject.publisher()
        (message,) = subject.messages(b"1")
        assert publisher.publish([message]) == publisher.publish([message]) == [ACCEPTED]
        assert len(subject.received()) == 1


def test_keys_that_may_be_groups_are_the_groups_and_others_have_different_ones():
    for key in ("order-1", "a.b_c:d/e{}~`", "k" * 128):
        assert group_id(key) == key
    assert len({group_id(key) for key in ("a b", "a  b", "ä", "k" * 129, "k" * 130)}) == 5


# Entries that fail


def test_an_entry_that_is_refused_for_good_is_rejected_and_the_others_are_accepted(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Failures({1: ("InvalidMessageContents", True), 2: ("SomethingNew", True)}))
    outcomes = case.make().publish(case.messages(4))
    assert [each.kind for each in outcomes] == [
        OutcomeKind.ACCEPTED,
        OutcomeKind.REJECTED,
        OutcomeKind.REJECTED,
        OutcomeKind.ACCEPTED,
    ]
    assert outcomes[1].error_class == "aws.refused"
    assert outcomes[1].error == "InvalidMessageContents: the reason"


def test_an_entry_that_aws_fails_is_deferred_if_others_for_its_destination_are_accepted(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Failures({0: ("InternalError", False)}))
    failed, accepted = case.make().publish(case.messages(2))
    assert (failed.kind, failed.counted, failed.error_class) == (OutcomeKind.DEFERRED, True, "aws.internal")
    assert accepted is ACCEPTED


def test_entries_are_set_aside_if_aws_fails_them_all(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Failures({0: ("InternalError", False), 1: ("SomethingNew", False)}))
    outcomes = case.make().publish(case.messages(2))
    assert [(each.kind, each.counted) for each in outcomes] == [(OutcomeKind.DEFERRED, False)] * 2


def test_an_entry_without_a_result_is_not_accepted(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Raw(200, b"{}" if case.service == "sqs" else b"<PublishBatchResponse/>"))
    (outcome,) = case.make().publish(case.messages(1))
    assert outcome.kind is not OutcomeKind.ACCEPTED


def test_throttled_entries_are_set_aside_and_nothing_more_is_sent_to_their_queue(case: Case, aws: AwsAnswers):
    throttled = dict.fromkeys(range(1, 10), ("ThrottlingException", True))
    aws.answer(case.action, Failures(throttled))
    outcomes = case.make(concurrency=1).publish(case.messages(25))
    assert outcomes[0] is ACCEPTED
    assert {(each.kind, each.counted, each.error_class) for each in outcomes[1:]} == {
        (OutcomeKind.DEFERRED, False, "aws.throttled")
    }
    assert all(1 <= (each.retry_after or 0) <= 2 for each in outcomes[1:])
    assert len(aws.batches()) == 1
