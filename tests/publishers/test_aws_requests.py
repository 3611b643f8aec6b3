"""Requests to AWS that fail as a whole: throttled, refused, or without a response."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from django_outbox.brokers import BatchRefused
from django_outbox.messages import ACCEPTED, OutcomeKind
from tests.support.aws.answers import AwsAnswers, Raw, Refusal, Silence, Trickle
from tests.support.aws.cases import Case

pytest_plugins = ["tests.support.aws.fixtures"]


@pytest.fixture
def case(aws: AwsAnswers) -> Iterator[Case]:
    """Amazon SQS: both publishers read the failure of a request in the same way."""
    case = Case("sqs", aws)
    yield case
    case.close()


@pytest.mark.parametrize("code", ["RequestThrottled", "Throttled", "KMSThrottling", "ThrottlingException"])
def test_a_throttled_request_is_set_aside(case: Case, aws: AwsAnswers, code: str):
    aws.answer(case.action, Refusal(code, status=429))
    (outcome,) = case.make().publish(case.messages(1))
    assert (outcome.kind, outcome.counted) == (OutcomeKind.DEFERRED, False)
    assert 1 <= (outcome.retry_after or 0) <= 2


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        ("ExpiredToken", "renew"),
        ("InvalidClientTokenId", "access key"),
        ("UnrecognizedClientException", "access key"),
        ("SignatureDoesNotMatch", "clock"),
        ("AccessDenied", "policy"),
        ("AuthorizationError", "policy"),
        ("KMSAccessDenied", "kms:GenerateDataKey"),
        ("InvalidSecurity", "HTTPS"),
    ],
)
def test_refused_credentials_and_permissions_are_an_outage_with_the_remedy(
    case: Case, aws: AwsAnswers, code: str, remedy: str
):
    aws.answer(case.action, Refusal(code, status=403))
    outcomes = case.make(concurrency=1).publish(case.messages(12))
    assert {each.kind for each in outcomes} == {OutcomeKind.UNANSWERED}
    assert all(remedy in each.error for each in outcomes)
    assert len(aws.batches()) == 1


def test_the_text_about_a_wrong_signature_is_not_shown(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Refusal("SignatureDoesNotMatch", "x-amz-security-token:s3cret", status=403))
    (outcome,) = case.make().publish(case.messages(1))
    assert "s3cret" not in outcome.error


def test_refused_credentials_are_read_again(case: Case, aws: AwsAnswers, tmp_path: Any, monkeypatch: Any):
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    file.write_text("[shop]\naws_access_key_id = OLD\naws_secret_access_key = x\n")
    publisher = case.make(session={"profile_name": "shop"})
    aws.answer(case.probe, Refusal("ExpiredToken", status=403))
    assert "renew" in publisher.prepare()
    file.write_text("[shop]\naws_access_key_id = NEW\naws_secret_access_key = x\n")
    assert publisher.prepare() == ""
    assert publisher._client.get()._request_signer._credentials.access_key == "NEW"


def test_a_missing_permission_for_one_of_several_destinations_leaves_the_others(
    case: Case, aws: AwsAnswers, caplog: pytest.LogCaptureFixture
):
    other = Case(case.service, aws)
    aws.answer(case.action, Refusal("AccessDenied", status=403))
    messages = [*case.messages(12), *other.messages(1)]
    with caplog.at_level(logging.WARNING, "django_outbox"):
        outcomes = case.make_for_topics(concurrency=1).publish(messages)
    assert outcomes[12] is ACCEPTED
    assert {(each.kind, each.counted, each.error_class) for each in outcomes[:12]} == {
        (OutcomeKind.DEFERRED, False, "aws.denied")
    }
    assert len(aws.batches()) == 2
    assert sum("AccessDenied" in each.getMessage() for each in caplog.records) == 1


@pytest.mark.parametrize("status", [500, 503])
def test_an_internal_error_of_a_request_is_an_outage(case: Case, aws: AwsAnswers, status: int):
    aws.answer(case.action, Refusal("InternalError", status=status))
    outcomes = case.make().publish(case.messages(2))
    assert [each.kind for each in outcomes] == [OutcomeKind.UNANSWERED] * 2


def test_a_page_of_a_proxy_in_between_is_an_outage(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Raw(502, b"<html>Bad Gateway</html>"))
    (outcome,) = case.make().publish(case.messages(1))
    assert outcome.kind is OutcomeKind.UNANSWERED


def test_a_request_that_is_too_large_for_a_proxy_in_between_is_no_outage(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Raw(413, b"<html>Request Entity Too Large</html>"))
    (outcome,) = case.make().publish(case.messages(1))
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.refused")


def test_silence_is_an_outage_that_ends(case: Case, aws: AwsAnswers):
    aws.answer(case.action, *[Silence(3)] * 4)
    outcomes = case.make(timeout=0.5).publish(case.messages(40))
    assert {each.kind for each in outcomes} == {OutcomeKind.UNANSWERED}


def test_a_response_that_never_ends_does_not_hold_up_the_relay(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Trickle(10))
    (outcome,) = case.make(timeout=2.0).publish(case.messages(1))
    assert (outcome.kind, outcome.error) == (OutcomeKind.UNANSWERED, "AWS has not responded in time")


@pytest.mark.parametrize("case", ["sqs"], indirect=True)
def test_messages_for_which_there_is_no_time_are_set_aside(case: Case, aws: AwsAnswers):
    aws.delay = 0.7
    outcomes = case.make(timeout=2.0, concurrency=1).publish(case.messages(100))
    assert outcomes[0] is ACCEPTED
    assert (outcomes[-1].kind, outcomes[-1].counted, outcomes[-1].error_class) == (
        OutcomeKind.DEFERRED,
        False,
        "aws.slow",
    )


def test_a_request_that_is_refused_for_one_of_its_messages_is_published_in_parts(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Refusal("InvalidParameterValue", "Value 's3cret' at 'entries' failed"))
    publisher = case.make(concurrency=1)
    with pytest.raises(BatchRefused) as caught:
        publisher.publish(case.messages(12))
    assert caught.value.permanent
    assert list(caught.value.outcomes) == [None] * 10 + [ACCEPTED] * 2
    assert "s3cret" not in str(caught.value)
    aws.answer(case.action, Refusal("InvalidParameterValue"))
    (outcome,) = publisher.publish(case.messages(1))
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.refused")


def test_a_code_that_is_not_known_fails_nothing_at_once(case: Case, aws: AwsAnswers):
    aws.answer(case.action, Refusal("SomethingNew"))
    (outcome,) = case.make().publish(case.messages(1))
    assert (outcome.kind, outcome.counted) == (OutcomeKind.DEFERRED, False)
