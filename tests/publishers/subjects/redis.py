"""The publisher for Redis streams."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import redis
from django.conf import settings

from django_outbox.brokers.redis import RedisStreamsPublisher
from django_outbox.messages import Message
from tests.publishers.subjects.base import ProxiedSubject, Received, unique_name
from tests.support.claimed import make_message
from tests.support.redis.tools import server_url


class RedisSubject(ProxiedSubject):
    def __init__(self) -> None:
        super().__init__(urlsplit(str(settings.REDIS_URL)).port or 6379)
        self._client = redis.Redis.from_url(settings.REDIS_URL)
        self.topic, self._wrong = unique_name(), unique_name()
        self._client.set(self._wrong, "not a stream")

    def make(self, **options: Any) -> RedisStreamsPublisher:
        return RedisStreamsPublisher("default", url=server_url(port=self.port), **options)

    def with_secret(self) -> RedisStreamsPublisher:
        return RedisStreamsPublisher("default", url=server_url(port=self.port, password=self.secret))

    def received(self) -> Sequence[Received]:
        entries: Any = self._client.xrange(self.topic)
        self._client.delete(self.topic)
        return [read_entry(fields) for _, fields in entries]

    def poison(self) -> Message:
        return make_message(self._wrong, b"2")

    def close(self) -> None:
        super().close()
        self._client.delete(self.topic, self._wrong)
        self._client.close()


def read_entry(fields: dict[bytes, bytes]) -> Received:
    """Return the entry of a stream as a consumer sees it."""
    texts = {name.decode(): value.decode() for name, value in fields.items() if name != b"payload"}
    headers = {"topic": texts.get("topic", ""), "occurred_at": texts["occurred_at"]}
    return Received(
        texts["id"],
        fields[b"payload"],
        texts["type"],
        texts.get("key", ""),
        {**json.loads(texts.get("headers", "{}")), **headers},
    )
