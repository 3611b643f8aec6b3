"""NATS JetStream. The limit: nats-py's asynchronous publishes over one connection."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import nats
from nats.errors import NoServersError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from django_outbox.brokers.text_headers import text_headers
from django_outbox.messages import Message
from tests.benchmarks.brokers.base import Broker

ResultT = TypeVar("ResultT")

WINDOW = 2000
"""Messages in flight."""


class JetStream(Broker):
    """A stream on disk, with a subject for each topic."""

    label = "NATS"
    setting = "NATS_URL"
    example = "nats://127.0.0.1:4222"
    process = "nats-server"
    errors = (NoServersError,)

    def create(self) -> str:
        async def create(client: Any) -> str:
            await client.jetstream().add_stream(name=self.name, subjects=[f"{self.name}.>"])
            version = client.connected_server_version
            return f"{version.major}.{version.minor}.{version.patch}"

        return self._run(create)

    def delete(self) -> None:
        async def delete(client: Any) -> None:
            try:
                await client.jetstream().delete_stream(self.name)
            except NotFoundError:
                """It was not created."""

        self._run(delete)

    def publisher(self, **options: Any) -> dict[str, Any]:
        given = {"servers": self.url, "subject": f"{self.name}.{{topic}}"}
        return {"BACKEND": "django_outbox.brokers.nats.JetStreamPublisher", "OPTIONS": given | options}

    def purge(self) -> None:
        # Each round has the same messages, and a stream that is only purged still knows their ids.
        self.delete()
        self.create()

    def count(self) -> int:
        return int(self._run(lambda client: client.jetstream().stream_info(self.name)).state.messages)

    @contextmanager
    def sender(self, messages: Sequence[Message]) -> Iterator[Callable[[], None]]:
        prepared = [
            (
                f"{self.name}.{each.destination}",
                each.payload,
                {"Nats-Msg-Id": each.message_id, **dict(text_headers(each))},
            )
            for each in messages
        ]

        async def send(stream: JetStreamContext) -> None:
            confirms = [
                await stream.publish_async(subject, payload, headers=headers) for subject, payload, headers in prepared
            ]
            # Raises if the broker refused any of them.
            await asyncio.gather(*confirms)

        loop = asyncio.new_event_loop()
        try:
            client = loop.run_until_complete(_connect(self.url))
            stream = client.jetstream(publish_async_max_pending=WINDOW)
            yield lambda: loop.run_until_complete(send(stream))
            loop.run_until_complete(client.close())
        finally:
            loop.close()

    def _run(self, work: Callable[[Any], Awaitable[ResultT]]) -> ResultT:
        """Do something over a connection of its own: nothing would serve one that is kept."""

        async def run() -> ResultT:
            client = await _connect(self.url)
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(run())


async def _connect(url: str) -> Any:
    return await nats.connect(url, allow_reconnect=False, connect_timeout=5)
