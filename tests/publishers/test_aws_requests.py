"""Requests to AWS that fail as a whole: throttled, refused, or without a response."""

from typing import Any

import pytest

from django_outbox.brokers import BatchRefused
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.publishers.subjects.base import unique_name
from tests.support.aws.answers import BATCH, AwsAnswers, Queue, Raw, Refusal, Trickle
from tests.support.aws.server import client
from tests.support.claimed import make_message
from tests.support.outcomes import summary, waiting

pytest_plugins = ["tests.support.aws.fixtures"]


def test_a_throttled_request_is_set_aside(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Refusal("KMSThrottling", status=429))
    (outcome,) = queue.make().publish(queue.messages(1))
    assert summary(outcome) == waiting("aws.throttled")
    assert outcome.retry_after == 2.0


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("ExpiredToken", "expired"),
        ("SignatureDoesNotMatch", "clock"),
        ("AccessDenied", "policies"),
        ("KMSAccessDenied", "KMS key"),
    ],
)
def test_refused_credentials_and_permissions_are_an_outage_with_the_remedy(
    queue: Queue, aws: AwsAnswers, code: str, remedy: str
):
    aws.answer(BATCH, Refusal(code, "x-amz-security-token:s3cret", status=403))
    outcomes = queue.make(concurrency=1).publish(queue.messages(12))
    assert {each.kind for each in outcomes} == {OutcomeKind.UNANSWERED}
    assert all(remedy in each.error for each in outcomes)
    assert code != "SignatureDoesNotMatch" or "s3cret" not in outcomes[0].error
    assert len(aws.batches()) == 1


def test_refused_credentials_are_read_again(queue: Queue, aws: AwsAnswers, tmp_path: Any, monkeypatch: Any):
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    file.write_text("[shop]\naws_access_key_id = OLD\naws_secret_access_key = x\n")
    publisher = queue.make(session={"profile_name": "shop"})
    aws.answer("ListQueues", Refusal("ExpiredToken", status=403))
    assert "ExpiredToken" in publisher.prepare()
    file.write_text("[shop]\naws_access_key_id = NEW\naws_secret_access_key = x\n")
    assert publisher.prepare() == ""
    assert publisher._get_client()._request_signer._credentials.access_key == "NEW"


def test_a_missing_permission_for_one_of_several_destinations_leaves_the_others(queue: Queue, aws: AwsAnswers):
    other = client("sqs").create_queue(QueueName=unique_name())["QueueUrl"].rpartition("/")[2]
    aws.answer(BATCH, Refusal("AccessDenied", status=403))
    messages = [*queue.messages(12), make_message(other)]
    outcomes = queue.make_for_topics(concurrency=1).publish(messages)
    assert outcomes[12] is ACCEPTED
    assert {summary(each) for each in outcomes[:12]} == {waiting("aws.denied")}
    assert len(aws.batches()) == 2


@pytest.mark.parametrize(
    "answer",
    [Refusal("InternalError", status=500), Raw(502, b"<html>Bad Gateway</html>")],
    ids=["internal error", "page of a proxy"],
)
def test_an_internal_error_of_a_request_is_an_outage(queue: Queue, aws: AwsAnswers, answer: Refusal | Raw):
    aws.answer(BATCH, answer)
    outcomes = queue.make().publish(queue.messages(2))
    assert [each.kind for each in outcomes] == [OutcomeKind.UNANSWERED] * 2


def test_a_request_that_is_too_large_for_a_proxy_in_between_is_no_outage(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Raw(413, b"<html>Request Entity Too Large</html>"))
    (outcome,) = queue.make().publish(queue.messages(1))
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.refused")


def test_a_response_that_never_ends_does_not_hold_up_the_relay(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Trickle(10))
    (outcome,) = queue.make(timeout=1.0).publish(queue.messages(1))
    assert (outcome.kind, outcome.error) == (OutcomeKind.UNANSWERED, "AWS has not responded in time")


def test_messages_for_which_there_is_no_time_are_set_aside(queue: Queue, aws: AwsAnswers):
    aws.delay = 0.7
    outcomes = queue.make(timeout=2.0, concurrency=1).publish(queue.messages(100))
    assert outcomes[0] is ACCEPTED
    assert summary(outcomes[-1]) == waiting("aws.slow")


def test_a_request_that_is_refused_for_one_of_its_messages_is_published_in_parts(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Refusal("InvalidParameterValue", "Value 's3cret' at 'entries' failed"))
    publisher = queue.make(concurrency=1)
    with pytest.raises(BatchRefused) as caught:
        publisher.publish(queue.messages(12))
    assert caught.value.permanent
    assert list(caught.value.outcomes) == [None] * 10 + [ACCEPTED] * 2
    assert "s3cret" not in str(caught.value)
    aws.answer(BATCH, Refusal("InvalidParameterValue"))
    (outcome,) = publisher.publish(queue.messages(1))
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.refused")


def test_a_code_that_is_not_known_fails_nothing_at_once(queue: Queue, aws: AwsAnswers):
    aws.answer(BATCH, Refusal("SomethingNew"))
    (outcome,) = queue.make().publish(queue.messages(1))
    assert (outcome.kind, outcome.counted) == (OutcomeKind.DEFERRED, False)
