"""A Redis server that writes everything to its file before it replies."""

from typing import Any, ClassVar

import redis

from tests.faults.brokers.base import TIMEOUT, WINDOW, OneProcess
from tests.faults.plan import Kind
from tests.support.children import Nursery, find_program

STREAMS = ("quorum.written", "classic.written")
DEAD = "dead"
ALL_STREAMS = (*STREAMS, DEAD)

GROUP = "faults"
"""The consumer group of each stream."""


class Redis(OneProcess):
    """A server with two streams and one for dead letters."""

    vendor = "redis"
    # A stream is made by its first message, and no message is too large for Redis before it is for the outbox.
    poison: ClassVar[tuple[Kind, ...]] = (Kind.UNROUTABLE,)
    consumer = "tests.faults.consumers.redis"

    def __init__(self, nursery: Nursery) -> None:
        super().__init__(nursery)
        folder = nursery.directory / "redis"
        folder.mkdir(mode=0o700)
        self.command = [
            find_program("redis-server"),
            *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--appendonly", "yes", "--appendfsync", "always", "--save", ""),
        ]

    def ping(self) -> None:
        with self.connect() as client:
            client.ping()

    def connect(self) -> redis.Redis:
        """Return a client, which connects by itself."""
        return redis.Redis(port=self.port, socket_timeout=10, socket_connect_timeout=10, decode_responses=True)

    def declare(self) -> None:
        with self.connect() as client:
            for stream in ALL_STREAMS:
                client.xgroup_create(stream, GROUP, "0", mkstream=True)
                if self.deduplicate:
                    client.execute_command("XCFGSET", stream, "IDMP-DURATION", WINDOW)
            # What is no stream takes no entries.
            client.set("nowhere", "not a stream")

    def publisher(self, port: int, *, dead: bool = False) -> dict[str, Any]:
        stream = DEAD if dead else "{topic}"
        options = {"url": self.url(port), "stream": stream, "timeout": TIMEOUT, "deduplicate": bool(self.deduplicate)}
        return {"BACKEND": "django_outbox.brokers.redis.RedisStreamsPublisher", "OPTIONS": options}

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0"

    def depth(self) -> int:
        with self.connect() as client:
            groups = [group for stream in ALL_STREAMS for group in client.xinfo_groups(stream)]
        return sum(int(group["lag"] or 0) + int(group["pending"]) for group in groups)

    def version(self) -> str:
        with self.connect() as client:
            return f"Redis {client.info('server')['redis_version']}"
