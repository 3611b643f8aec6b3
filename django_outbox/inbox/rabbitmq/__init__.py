"""RabbitMQ: reads a queue with manual acknowledgements over one connection."""

from django_outbox.inbox.rabbitmq.consumer import RabbitMQConsumer

__all__ = ["RabbitMQConsumer"]
