"""Redis Streams. The limit: redis-py's pipelines of XADD over one connection."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis

from django_outbox.brokers.text_headers import text_headers
from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker

PIPELINE = 500
"""Commands that are sent at once."""


class RedisStreams(Broker):
    """A stream for each topic."""

    label = "Redis"
    setting = "REDIS_URL"
    example = "redis://127.0.0.1:6379/0"
    process = "redis-server"
    errors = (redis.ConnectionError,)

    def create(self) -> str:
        self._streams = [f"{self.name}.{topic}" for topic in self.topics]
        self._client = redis.Redis.from_url(self.url)
        return str(self._client.info("server")["redis_version"])

    def delete(self) -> None:
        self._client.close()
        with redis.Redis.from_url(self.url) as client:
            client.delete(*self._streams)

    def publisher(self, **options: Any) -> dict[str, Any]:
        given = {"url": self.url, "stream": f"{self.name}.{{topic}}"}
        return {"BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        self._client.delete(*self._streams)

    def count(self) -> int:
        return sum(int(self._client.xlen(stream)) for stream in self._streams)

    @contextmanager
    def sender(self, messages: Sequence[Message]) -> Iterator[Callable[[], None]]:
        entries: list[tuple[str, dict[Any, Any]]] = [
            (f"{self.name}.{each.destination}", {"payload": each.payload, **dict(text_headers(each))})
            for each in messages
        ]

        def send() -> None:
            for start in range(0, len(entries), PIPELINE):
                pipeline = client.pipeline(transaction=False)
                for stream, fields in entries[start : start + PIPELINE]:
                    pipeline.xadd(stream, fields)
                # Raises if the reply to any of them is an error.
                pipeline.execute()

        with redis.Redis.from_url(self.url) as client:
            client.ping()
            yield send
