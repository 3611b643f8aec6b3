"""Amazon SQS and Amazon SNS: publish batches of ten messages, several requests at a time."""

from django_outbox.brokers.aws.sns import SNSPublisher
from django_outbox.brokers.aws.sqs import SQSPublisher

__all__ = ["SNSPublisher", "SQSPublisher"]
