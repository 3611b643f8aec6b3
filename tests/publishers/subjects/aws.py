"""The publishers for Amazon SQS and Amazon SNS; `tests.support.aws.server` stands for AWS."""

import json
from collections.abc import Sequence
from typing import Any

from django_outbox.brokers.aws import SNSPublisher, SQSPublisher
from django_outbox.brokers.aws.publisher import AWSPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import ProxiedSubject, Received, unique_name
from tests.support.aws.server import CREDENTIALS, REGION, address, client, elasticmq_url
from tests.support.claimed import make_message

ATTRIBUTE_BYTES = 512
"""More than the attributes of a message without headers take."""


class SQSSubject(ProxiedSubject):
    """A queue from which what arrived is read, and a proxy to AWS."""

    largest = 1024 * 1024 - ATTRIBUTE_BYTES

    fifo = False
    # Requests are in flight together.
    order = False
    # For each message, moto looks at all others in the queue.
    many = 100

    def __init__(self, server: str = "") -> None:
        super().__init__(address(server)[1])
        suffix = ".fifo" if self.fifo else ""
        self.topic = unique_name() + suffix
        self._client = client("sqs", url=server)
        self._queue_url = self._client.create_queue(
            QueueName=self.topic, Attributes={"FifoQueue": "true"} if self.fifo else {}
        )["QueueUrl"]

    def options(self, **options: Any) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.port}"
        return {"region": REGION, "endpoint_url": url, "session": CREDENTIALS, **options}

    def make(self, **options: Any) -> AWSPublisher:
        return SQSPublisher(
            "default", queue_url=f"{self._queue_url.rpartition('/')[0]}/{{topic}}", **self.options(**options)
        )

    def with_secret(self) -> AWSPublisher:
        return self.make(session={**CREDENTIALS, "aws_secret_access_key": self.secret}, timeout=2.0)

    def received(self) -> Sequence[Received]:
        found: list[Received] = []
        options: dict[str, Any] = {"MaxNumberOfMessages": 10, "WaitTimeSeconds": 0, "MessageAttributeNames": ["All"]}
        while messages := self._client.receive_message(QueueUrl=self._queue_url, **options).get("Messages"):
            found += map(_read, messages)
            handles = [{"Id": str(n), "ReceiptHandle": each["ReceiptHandle"]} for n, each in enumerate(messages)]
            self._client.delete_message_batch(QueueUrl=self._queue_url, Entries=handles)
        return found

    def poison(self) -> Message:
        return make_message(self.topic, b"1" * 1024 * 1024)

    def close(self) -> None:
        super().close()
        self._client.delete_queue(QueueUrl=self._queue_url)


class FIFOSubject(SQSSubject):
    fifo = True


class ElasticMQSubject(FIFOSubject):
    """A FIFO queue of ElasticMQ, which has the limit that Amazon SQS had until 2025."""

    largest = 256 * 1024 - ATTRIBUTE_BYTES

    def __init__(self) -> None:
        super().__init__(elasticmq_url())

    def make(self, **options: Any) -> AWSPublisher:
        return super().make(**{"max_message_bytes": 256 * 1024, **options})


class SNSSubject(SQSSubject):
    """A topic to which the queue is subscribed."""

    largest = 256 * 1024 - ATTRIBUTE_BYTES

    def __init__(self) -> None:
        super().__init__()
        self._sns = client("sns")
        self.arn = self._sns.create_topic(Name=self.topic)["TopicArn"]
        attributes = self._client.get_queue_attributes(QueueUrl=self._queue_url, AttributeNames=["QueueArn"])
        self._sns.subscribe(
            TopicArn=self.arn,
            Protocol="sqs",
            Endpoint=attributes["Attributes"]["QueueArn"],
            Attributes={"RawMessageDelivery": "true"},
        )

    def make(self, **options: Any) -> AWSPublisher:
        prefix = self.arn.rpartition(":")[0]
        return SNSPublisher("default", topic_arn=f"{prefix}:{{topic}}", **self.options(**options))

    def close(self) -> None:
        self._sns.delete_topic(TopicArn=self.arn)
        super().close()


def _read(message: Any) -> Received:
    attributes = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    headers = json.loads(attributes.pop("outbox-headers", "{}"))
    return Received(
        attributes["outbox-message-id"],
        message["Body"].encode(),
        attributes["outbox-type"],
        attributes.get("outbox-key", ""),
        headers,
    )
