"""NATS JetStream: reads a stream through a durable pull consumer."""

from django_outbox.inbox.nats.consumer import JetStreamConsumer

__all__ = ["JetStreamConsumer"]
