"""NATS as administrators and consumers see it: streams, their messages, and servers that tests start."""

import asyncio
import base64
import json
import threading
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

import nats
from django.conf import settings
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError

from django_outbox.brokers.nats import JetStreamPublisher

MakeJetStream = Callable[..., JetStreamPublisher]

T = TypeVar("T")

TIMEOUT = 30.0
"""Seconds that a server has to do what a test asks for."""


def nats_url(*, port: int | None = None, login: str = "") -> str:
    """Return the URL of the tests' server with changes; a port is that of a proxy on this machine."""
    parts = urlsplit(str(settings.NATS_URL))
    given, _, address = parts.netloc.rpartition("@")
    login = login or given
    return f"nats://{login}{'@' if login else ''}{address if port is None else f'127.0.0.1:{port}'}"


def nats_port() -> int:
    """Return the port of the tests' server, which a proxy leads to."""
    return urlsplit(str(settings.NATS_URL)).port or 4222


@dataclass(frozen=True)
class Stored:
    subject: str
    headers: dict[str, str]
    data: bytes


class Nats:
    """Streams of a server, by default that of the tests; leaving the context deletes those that were created."""

    def __init__(self, url: str = "", **options: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tests-nats", daemon=True)
        self._thread.start()
        self._streams: list[str] = []
        self._read: dict[str, int] = {}
        self.client: Client = self.run(lambda: nats.connect(url or str(settings.NATS_URL), **options))
        self.js: JetStreamContext = self.client.jetstream(timeout=TIMEOUT)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run something in the thread of the connection, and return its result."""

        async def call() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(2 * TIMEOUT)

    def stream(self, *subjects: str, **config: Any) -> str:
        """Create a stream with a unique name, in memory, and return its name.

        Its subjects are its name and all below, unless others are given.
        """
        name = f"outbox-test-{uuid.uuid4()}"
        given = {"storage": "memory", "subjects": list(subjects) or [name, f"{name}.>"], **config}
        self._streams.append(name)
        self.run(lambda: self.js.add_stream(StreamConfig(name=name, **given)))
        return name

    def delete(self, stream: str) -> None:
        self.run(lambda: self.js.delete_stream(stream))

    def publish(self, subject: str, body: bytes, headers: Mapping[str, str]) -> None:
        """Store a message; its headers may be of any text, unlike those that nats-py sends."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        block = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""

        async def send() -> None:
            inbox = self.client.new_inbox()
            replies = await self.client.subscribe(inbox, max_msgs=1)
            start = f"HPUB {subject} {inbox} {len(block)}" if block else f"PUB {subject} {inbox}"
            command = f"{start} {len(block) + len(body)}\r\n".encode()
            await self.client._send_command(command + block + body + b"\r\n")
            await self.client._flush_pending()
            reply = await replies.next_msg(TIMEOUT)
            assert b'"error"' not in reply.data
            assert b'"seq"' in reply.data

        self.run(send)

    def count(self, stream: str) -> int:
        return self.run(lambda: self.js.stream_info(stream)).state.messages

    def take(self, stream: str) -> list[Stored]:
        """Return the messages that were stored in a stream since the last call."""
        state = self.run(lambda: self.js.stream_info(stream)).state
        first = self._read.get(stream, 0) + 1
        self._read[stream] = state.last_seq

        async def read() -> list[Stored]:
            numbers = range(max(first, state.first_seq), state.last_seq + 1)
            return await asyncio.gather(*(self._get(stream, number) for number in numbers))

        return self.run(read)

    async def _get(self, stream: str, number: int) -> Stored:
        # nats-py reads a header that is not ASCII as an object of the package email.
        request = json.dumps({"seq": number}).encode()
        response = await self.client.request(f"$JS.API.STREAM.MSG.GET.{stream}", request, timeout=TIMEOUT)
        message = json.loads(response.data)["message"]
        lines = base64.b64decode(message.get("hdrs", "")).decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines if line)
        return Stored(message["subject"], headers, base64.b64decode(message.get("data", "")))

    def __enter__(self) -> "Nats":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(NotFoundError, nats.errors.Error, asyncio.TimeoutError, TimeoutError):
            for name in self._streams:
                with suppress(NotFoundError):
                    self.delete(name)
        with suppress(Exception):
            self.run(self.client.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
