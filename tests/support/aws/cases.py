"""Publishers of Amazon SQS and Amazon SNS behind a server that answers as a test wants."""

from typing import Any

from django_outbox.brokers.aws import SNSPublisher, SQSPublisher
from django_outbox.brokers.aws.publisher import AWSPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import unique_name
from tests.support.aws.answers import AwsAnswers
from tests.support.aws.server import CREDENTIALS, REGION, client
from tests.support.claimed import make_message

ACTIONS = {"sqs": "SendMessageBatch", "sns": "PublishBatch"}
PROBES = {"sqs": "ListQueues", "sns": "ListTopics"}


class Case:
    """A publisher of one service behind `AwsAnswers`, and its destinations."""

    def __init__(self, service: str, aws: AwsAnswers) -> None:
        self.service = service
        self.action = ACTIONS[service]
        self.probe = PROBES[service]
        self.topic = unique_name()
        self._aws = aws
        self._made: list[AWSPublisher] = []
        if service == "sqs":
            self.destination = str(client("sqs").create_queue(QueueName=self.topic)["QueueUrl"])
        else:
            self.destination = str(client("sns").create_topic(Name=self.topic)["TopicArn"])

    def make(self, destination: str = "", **options: Any) -> AWSPublisher:
        """Return a publisher to this destination, by default the one that exists."""
        name = destination or self.destination
        common: dict[str, Any] = {
            "region": REGION,
            "endpoint_url": self._aws.url,
            "session": CREDENTIALS,
            "timeout": 20.0,
            **options,
        }
        made: AWSPublisher
        if self.service == "sqs":
            made = SQSPublisher("default", queue_url=name, **common)
        else:
            made = SNSPublisher("default", topic_arn=name, **common)
        self._made.append(made)
        return made

    def make_for_topics(self, **options: Any) -> AWSPublisher:
        """Return a publisher whose destination is named by the topic of a message."""
        separator = "/" if self.service == "sqs" else ":"
        return self.make(f"{self.destination.rpartition(separator)[0]}{separator}{{topic}}", **options)

    def messages(self, count: int, **fields: Any) -> list[Message]:
        return [make_message(self.topic, str(n).encode(), **fields) for n in range(count)]

    def close(self) -> None:
        for each in self._made:
            each.close()
