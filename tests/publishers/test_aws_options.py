"""The options of the publishers for Amazon SQS and Amazon SNS."""

from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.aws import SNSPublisher, SQSPublisher

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
ARN = "arn:aws:sns:eu-central-1:123456789012:orders"

INVALID: list[tuple[dict[str, Any], str]] = [
    ({"region": ""}, "region is ''"),
    ({"region": 1}, "region is 1"),
    ({"endpoint_url": "localhost:4566"}, "endpoint_url: a URL must begin with http:// or https://"),
    ({"endpoint_url": "http://user:s3cret@localhost"}, "endpoint_url contains a user or a password"),
    ({"session": "shop"}, "session must be a dict"),
    ({"session": {"region_name": "x"}}, "the region is the option region"),
    ({"session": {"profile_name": ""}}, "session must be a dict"),
    ({"session": {"aws_secret_access_key": "s3cret", "x": "y"}}, "session must be a dict"),
    ({"timeout": 0}, "timeout is 0"),
    ({"concurrency": 0}, "concurrency is 0"),
    ({"concurrency": 1001}, "from 1 to 1,000"),
    ({"max_message_bytes": 1024 * 1024 + 1}, "from 1,024 to 1,048,576"),
    ({"format": "xml"}, "format is 'xml'"),
    ({"source": "/shop"}, "source is set"),
]


@pytest.mark.parametrize(
    "make", [lambda **o: SQSPublisher("a", queue_url=URL, **o), lambda **o: SNSPublisher("a", topic_arn=ARN, **o)]
)
@pytest.mark.parametrize(("options", "error"), INVALID, ids=[str(n) for n in range(len(INVALID))])
def test_an_invalid_option_is_refused_with_the_remedy(make: Any, options: dict[str, Any], error: str):
    with pytest.raises(ImproperlyConfigured) as caught:
        make(**options)
    assert error in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, "queue_url is ''"),
        ({"queue_url": "orders"}, "it must be a URL such as"),
        ({"queue_url": f"{URL}-{{id}}"}, "its placeholders must be"),
    ],
)
def test_a_publisher_for_sqs_needs_the_url_of_a_queue(options: dict[str, Any], error: str):
    with pytest.raises(ImproperlyConfigured, match=error):
        SQSPublisher("default", **options)


@pytest.mark.parametrize(
    "options", [{}, {"topic_arn": "orders"}, {"topic_arn": 1}, {"topic_arn": URL}, {"topic_arn": "arn:aws:sns:x"}]
)
def test_a_publisher_for_sns_needs_the_arn_of_a_topic(options: dict[str, Any]):
    with pytest.raises(ImproperlyConfigured, match="topic_arn is"):
        SNSPublisher("default", **options)


def test_the_region_of_a_topic_is_that_of_its_arn():
    assert "at eu-central-1" in SNSPublisher("default", topic_arn=ARN).describe()
    with pytest.raises(ImproperlyConfigured, match="topic_arn is in 'eu-central-1'"):
        SNSPublisher("default", topic_arn=ARN, region="us-east-1")


def test_a_description_names_the_service_the_region_and_the_destination():
    assert SQSPublisher("a", queue_url=URL, region="eu-central-1").describe() == f"Amazon SQS at eu-central-1, '{URL}'"
    assert SNSPublisher("a", topic_arn=ARN).describe() == f"Amazon SNS at eu-central-1, '{ARN}'"
