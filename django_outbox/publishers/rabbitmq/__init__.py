"""RabbitMQ: publishes with pipelined confirms over one connection."""

from django_outbox.publishers.rabbitmq.publisher import RabbitMQPublisher

__all__ = ["RabbitMQPublisher"]
