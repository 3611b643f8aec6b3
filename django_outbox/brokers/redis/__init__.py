"""Redis: appends messages to streams in one pipeline, and reads a stream as a member of a consumer group."""

from django_outbox.brokers.redis.consumer import RedisStreamsConsumer
from django_outbox.brokers.redis.publisher import RedisStreamsPublisher

__all__ = ["RedisStreamsConsumer", "RedisStreamsPublisher"]
