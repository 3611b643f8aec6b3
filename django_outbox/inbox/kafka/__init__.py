"""Kafka: reads topics as a member of a consumer group."""

from django_outbox.inbox.kafka.consumer import KafkaConsumer

__all__ = ["KafkaConsumer"]
