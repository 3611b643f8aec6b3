"""Amazon SQS and Amazon SNS: publish batches of ten messages, several requests at a time."""

from django_outbox.brokers.aws.publisher import SNSPublisher, SQSPublisher

__all__ = ["SNSPublisher", "SQSPublisher"]
