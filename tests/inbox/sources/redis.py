"""A stream of Redis."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings

from django_outbox.brokers.redis import RedisStreamsPublisher
from tests.inbox.sources.base import Sent, Source
from tests.publishers.subjects.base import unique_name
from tests.support.redis.tools import server_url

CLAIM_IDLE = 0.3


class RedisSource(Source):
    """A stream, and a group that is created by the consumer."""

    backend = "django_outbox.brokers.redis.RedisStreamsConsumer"

    def __init__(self) -> None:
        self.client = redis.Redis.from_url(settings.REDIS_URL)
        self.name, self.group = unique_name(), "billing"
        self.port = urlsplit(str(settings.REDIS_URL)).port or 6379

    @property
    def options(self) -> dict[str, Any]:
        return {
            "url": settings.REDIS_URL,
            "stream": self.name,
            "group": self.group,
            "claim_idle": CLAIM_IDLE,
        }

    def make_publisher(self) -> RedisStreamsPublisher:
        return RedisStreamsPublisher("shop", url=settings.REDIS_URL)

    def at(self, port: int) -> dict[str, Any]:
        return {"url": server_url(port=port)}

    def _put(self, messages: Sequence[Sent]) -> None:
        for each in messages:
            headers = json.dumps(each.headers) if each.headers else ""
            texts = {"id": each.message_id, "type": each.type, "key": each.key, "headers": headers}
            fields: dict[Any, Any] = {name: text for name, text in texts.items() if text}
            fields |= {**each.properties, "payload": each.body}
            self.client.xadd(self.name, fields)

    def unsettled(self) -> int:
        return self._new() + self._pending(0)

    def receivable(self) -> int:
        return self._new() + self._pending(int(CLAIM_IDLE * 1000))

    def close(self) -> None:
        self.client.delete(self.name)
        self.client.close()

    def _new(self) -> int:
        """Return the number of entries that the group has not delivered."""
        groups: Any = self.client.xinfo_groups(self.name) if self.client.exists(self.name) else []
        delivered = next((group["last-delivered-id"] for group in groups), b"0-0").decode()
        entries: Any = self.client.xrange(self.name, f"({delivered}")
        return len(entries)

    def _pending(self, idle: int) -> int:
        try:
            found: Any = self.client.xpending_range(self.name, self.group, "-", "+", 10_000, idle=idle)
        except redis.ResponseError:
            # No consumer has created the group yet.
            return 0
        return len(found)
