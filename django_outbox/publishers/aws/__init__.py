"""Amazon SQS and Amazon SNS: publish batches of ten messages, several requests at a time."""

from django_outbox.publishers.aws.sns import SNSPublisher
from django_outbox.publishers.aws.sqs import SQSPublisher

__all__ = ["SNSPublisher", "SQSPublisher"]
