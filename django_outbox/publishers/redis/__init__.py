"""Redis: appends messages to streams, a whole batch in one pipeline."""

from django_outbox.publishers.redis.publisher import RedisStreamsPublisher

__all__ = ["RedisStreamsPublisher"]
