"""A publisher for Amazon SQS."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from django_outbox.brokers.aws.client import MAX_MESSAGE_BYTES, ClientOptions
from django_outbox.brokers.aws.encoding import EntryEncoder
from django_outbox.brokers.aws.publisher import AWSPublisher
from django_outbox.brokers.options import Template

MAX_CACHED_URLS = 1000
"""Maximum number of queues whose URL is remembered."""


class SQSPublisher(AWSPublisher):
    """Sends messages to queues of Amazon SQS, with SendMessageBatch.

    A message is accepted when AWS has accepted its entry: then it is stored on several servers. It is rejected if AWS
    refuses it for good, or if its queue does not exist and the name has placeholders. It is set aside if its queue is
    throttled, or must not be written to while others may. If AWS does not respond or refuses the credentials, or if the
    only queue is missing or must not be written to, messages are unanswered. Messages that are set aside or unanswered
    use up no attempts.

    Attributes of a message are `outbox-message-id`, `outbox-type`, `outbox-occurred-at`, `content-type`, `outbox-key`
    unless the key is blank, `outbox-headers` with all headers as a JSON object, and `traceparent` and `tracestate` of
    the headers. For a FIFO queue, the key is the MessageGroupId (the ID of the message if it has no key), and the ID of
    the message the MessageDeduplicationId.

    Args:
        alias: the publisher's name in the settings.
        queue: the name of the queue, in which `{topic}` stands for a message's topic, `{type}` for its type and `{key}`
            for its key. Its URL is asked for once.
        queue_url: instead of `queue`, the URL of the queue, with the same placeholders.
        region: the region. Defaults to that of boto3's configuration, such as `AWS_DEFAULT_REGION`.
        endpoint_url: the URL of the service, for a VPC endpoint or another implementation. Defaults to that of AWS.
        session: a dict of arguments for `boto3.session.Session`, such as `profile_name`. By default, credentials are
            found as boto3 always finds them.
        config: a dict of arguments for `botocore.config.Config`, such as `proxies`.
        timeout: seconds that AWS has to respond to a request. After that time, a call of `publish` begins no further
            requests. Connecting may take 5 of these seconds.
        concurrency: maximum number of requests in flight, in all threads together.
        max_message_bytes: maximum number of bytes of a request, attributes included, and so of a message.
        format: "plain", or "cloudevents-structured" to send each message as a CloudEvent in JSON.
        source: the `source` of CloudEvents.

    Raises:
        ImproperlyConfigured: an option is invalid; the error names the option and the remedy, and never shows
            credentials.
    """

    messaging_system = "aws_sqs"
    broker_name = "Amazon SQS"

    def __init__(
        self,
        alias: str,
        *,
        queue: str | None = None,
        queue_url: str | None = None,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Mapping[str, str] | None = None,
        config: Mapping[str, Any] | None = None,
        timeout: float = 30.0,
        concurrency: int = 10,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        format: str = "plain",
        source: str = "",
    ) -> None:
        if (queue is None) == (queue_url is None):
            raise ImproperlyConfigured("set either queue, to the name of the queue, or queue_url, to its URL.")
        template = Template("queue", queue) if queue_url is None else Template("queue_url", queue_url)
        if queue_url is not None and not queue_url.startswith(("https://", "http://")):
            raise ImproperlyConfigured(
                f"queue_url is {queue_url!r}; it must be a URL such as "
                "'https://sqs.eu-central-1.amazonaws.com/123456789012/orders'. A name is the option queue."
            )
        self._has_urls = queue_url is not None
        super().__init__(
            alias,
            service="sqs",
            options=ClientOptions(
                region=region,
                endpoint_url=endpoint_url,
                session=session,
                config=config,
                timeout=timeout,
                concurrency=concurrency,
                max_message_bytes=max_message_bytes,
            ),
            encoder=EntryEncoder(template, max_message_bytes, body_name="MessageBody", format=format, source=source),
        )

    def _probe(self, client: Any) -> None:
        client.list_queues(MaxResults=1)

    def _read_limit(self, client: Any, destination: str) -> int:
        url = self._find_url(client, destination)
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=["MaximumMessageSize"])
        return int(found.get("Attributes", {}).get("MaximumMessageSize", MAX_MESSAGE_BYTES))

    def _send_batch(self, client: Any, destination: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        url = self._find_url(client, destination)
        try:
            response: Mapping[str, Any] = client.send_message_batch(QueueUrl=url, Entries=entries)
        except client.exceptions.QueueDoesNotExist:
            self._urls.pop(destination, None)
            raise
        return response

    def _find_url(self, client: Any, destination: str) -> str:
        if self._has_urls:
            return destination
        url = self._urls.get(destination)
        if url is None:
            url = str(client.get_queue_url(QueueName=destination)["QueueUrl"])
            if len(self._urls) >= MAX_CACHED_URLS:
                self._urls.clear()
            self._urls[destination] = url
        return url

    def _start_over(self) -> None:
        super()._start_over()
        self._urls: dict[str, str] = {}
