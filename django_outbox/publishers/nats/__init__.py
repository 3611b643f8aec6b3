"""NATS JetStream: publishes asynchronously over one connection, each message confirmed by its stream."""

from django_outbox.publishers.nats.publisher import JetStreamPublisher

__all__ = ["JetStreamPublisher"]
