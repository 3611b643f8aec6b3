"""RabbitMQ: publishes with pipelined confirms, and reads a queue with manual acknowledgements."""

from django_outbox.brokers.rabbitmq.consumer import RabbitMQConsumer
from django_outbox.brokers.rabbitmq.publisher import RabbitMQPublisher

__all__ = ["RabbitMQConsumer", "RabbitMQPublisher"]
