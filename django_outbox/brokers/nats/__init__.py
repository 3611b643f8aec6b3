"""NATS JetStream: publishes asynchronously over one connection, and reads a stream through a durable pull consumer."""

from django_outbox.brokers.nats.consumer import JetStreamConsumer
from django_outbox.brokers.nats.publisher import JetStreamPublisher

__all__ = ["JetStreamConsumer", "JetStreamPublisher"]
