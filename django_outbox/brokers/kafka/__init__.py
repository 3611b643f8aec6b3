"""Kafka: publishes with an idempotent producer, and reads topics as a member of a consumer group."""

from django_outbox.brokers.kafka.consumer import KafkaConsumer
from django_outbox.brokers.kafka.publisher import KafkaPublisher

__all__ = ["KafkaConsumer", "KafkaPublisher"]
