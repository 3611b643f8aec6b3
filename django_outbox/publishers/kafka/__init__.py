"""Kafka: publishes with an idempotent producer and waits for all in-sync replicas."""

from django_outbox.publishers.kafka.publisher import KafkaPublisher

__all__ = ["KafkaPublisher"]
