"""Redis: reads a stream as a member of a consumer group."""

from django_outbox.inbox.redis.consumer import RedisStreamsConsumer

__all__ = ["RedisStreamsConsumer"]
