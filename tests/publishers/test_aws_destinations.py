"""Queues and topics: their names, and those that do not exist."""

import pytest

from django_outbox.messages import OutcomeKind
from tests.support.aws.answers import AwsAnswers, Refusal
from tests.support.aws.cases import Case
from tests.support.claimed import make_message

pytest_plugins = ["tests.support.aws.fixtures"]


def test_a_message_for_a_destination_that_does_not_exist_is_rejected_with_the_remedy(case: Case):
    messages = [*case.messages(1), make_message("outbox-missing"), *case.messages(1)]
    outcomes = case.make_for_topics().publish(messages)
    assert [each.kind for each in outcomes] == [OutcomeKind.ACCEPTED, OutcomeKind.REJECTED, OutcomeKind.ACCEPTED]
    assert outcomes[1].error_class == "aws.missing"
    assert "create it" in outcomes[1].error


def test_a_missing_destination_of_all_messages_is_an_outage_with_the_remedy(case: Case):
    publisher = case.make(f"{case.destination}-missing")
    outcomes = publisher.publish(case.messages(2))
    assert [each.kind for each in outcomes] == [OutcomeKind.UNANSWERED] * 2
    assert "create it" in outcomes[0].error


def test_a_name_that_no_queue_or_topic_can_have_is_rejected_before_anything_is_sent(case: Case, aws: AwsAnswers):
    (outcome,) = case.make_for_topics().publish([make_message("", type="order.created")])
    assert (outcome.kind, outcome.error_class) == (OutcomeKind.REJECTED, "aws.missing")
    assert "give the message a topic" in outcome.error
    assert not aws.seen


def test_an_action_that_is_not_allowed_does_not_keep_the_relay_from_sending(case: Case, aws: AwsAnswers):
    aws.answer(case.probe, Refusal("AccessDenied", status=403))
    assert case.make().prepare() == ""


@pytest.mark.parametrize("case", ["sqs"], indirect=True)
def test_a_server_that_does_not_speak_tls_is_an_outage_with_the_remedy(case: Case, aws: AwsAnswers):
    assert "AWS_CA_BUNDLE" in case.make(endpoint_url=aws.url.replace("http:", "https:")).prepare()


@pytest.mark.parametrize("case", ["sqs"], indirect=True)
def test_missing_credentials_and_a_missing_region_are_named(case: Case, monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "give this process credentials" in case.make(session=None).prepare()
    assert "set the option region" in case.make(region=None).prepare()


def test_a_profile_that_does_not_exist_is_named(case: Case):
    publisher = case.make(session={"profile_name": "outbox-missing"})
    assert "profile_name in the option session" in publisher.prepare()
    (outcome,) = publisher.publish(case.messages(1))
    assert outcome.kind is OutcomeKind.UNANSWERED


def test_a_destination_in_a_trace_has_the_name_of_the_message(case: Case):
    assert case.make_for_topics().name_destination(case.messages(1)[0]) == case.destination
