"""A publisher for Amazon SNS."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.aws.client import ClientOptions
from django_outbox.brokers.aws.encoding import EntryEncoder
from django_outbox.brokers.aws.publisher import AWSPublisher
from django_outbox.brokers.options import Template

DEFAULT_MESSAGE_BYTES = 256 * 1024
"""MaximumMessageSize of a topic that does not set it:
https://docs.aws.amazon.com/sns/latest/dg/large-message-payloads.html"""

_ARN = re.compile(r"arn:[a-z-]+:sns:([a-z0-9-]+):[^:]+:.+")


class SNSPublisher(AWSPublisher):
    """Publishes messages to topics of Amazon SNS, with PublishBatch.

    Outcomes, attributes and the treatment of FIFO topics are those of `SQSPublisher`. Accepted means that AWS has
    stored the message; it does not mean that a subscriber has received it.

    Args:
        alias: the publisher's name in the settings.
        topic_arn: the ARN of the topic, in which `{topic}` stands for a message's topic, `{type}` for its type and
            `{key}` for its key, but not in place of the region.
        region: the region. It is that of the ARN.
        endpoint_url: as for `SQSPublisher`, like the options that follow.
        session: as there.
        config: as there.
        timeout: as there.
        concurrency: as there.
        max_message_bytes: maximum number of bytes of a request, attributes included, and so of a message. At most
            MaximumMessageSize of the topic.
        format: as there.
        source: as there.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows
            credentials.
    """

    messaging_system = "aws.sns"
    broker_name = "Amazon SNS"

    def __init__(
        self,
        alias: str,
        *,
        topic_arn: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        concurrency: int = 10,
        max_message_bytes: int = DEFAULT_MESSAGE_BYTES,
        format: str = "plain",
        source: str = "",
    ) -> None:
        found = _ARN.fullmatch(topic_arn) if isinstance(topic_arn, str) else None
        if found is None:
            raise ImproperlyConfigured(
                f"topic_arn is {topic_arn!r}; it must be an ARN such as 'arn:aws:sns:eu-central-1:123456789012:orders'."
            )
        if region is not None and region != found[1]:
            raise ImproperlyConfigured(
                f"region is {region!r}, but topic_arn is in {found[1]!r}; leave region out, or correct topic_arn."
            )
        super().__init__(
            alias,
            service="sns",
            options=ClientOptions(
                region=found[1],
                endpoint_url=endpoint_url,
                session=session,
                config=config,
                timeout=timeout,
                concurrency=concurrency,
                max_message_bytes=max_message_bytes,
            ),
            encoder=EntryEncoder(
                Template("topic_arn", topic_arn), max_message_bytes, body_name="Message", format=format, source=source
            ),
        )

    def _probe(self, client: Any) -> None:
        client.list_topics()

    def _read_limit(self, client: Any, destination: str) -> int:
        found = client.get_topic_attributes(TopicArn=destination)
        return int(found.get("Attributes", {}).get("MaximumMessageSize", DEFAULT_MESSAGE_BYTES))

    def _send_batch(self, client: Any, destination: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        response: Mapping[str, Any] = client.publish_batch(TopicArn=destination, PublishBatchRequestEntries=entries)
        return response
