"""A NATS server with JetStream."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, TypeVar

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import DiscardPolicy, StreamConfig

from tests.faults.brokers.base import TIMEOUT, WINDOW, OneProcess
from tests.faults.plan import MAX_MESSAGE, Kind
from tests.faults.positions import Positions
from tests.support.children import Nursery, find_program

SUBJECTS = {"WRITTEN": ["quorum.written", "classic.written"], "DEAD": ["dead"]}
"""The subjects of each stream."""

WINDOWS = {None: 120.0, False: 0.1, True: float(WINDOW)}
"""Seconds in which a stream drops what is sent again, by the choice of a run: the default, the least, and more."""

ResultT = TypeVar("ResultT")


class Nats(OneProcess):
    """A server with a stream for messages and one for dead letters."""

    vendor = "nats"
    poison: ClassVar[tuple[Kind, ...]] = (Kind.UNROUTABLE, Kind.TOO_LARGE)
    consumer = "tests.faults.consumers.nats"

    def __init__(self, nursery: Nursery) -> None:
        super().__init__(nursery)
        config = nursery.directory / "nats.conf"
        Positions(nursery.logs).forget()
        config.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\nmax_payload: {MAX_MESSAGE}\n'
            f'jetstream {{ store_dir: "{nursery.directory / "nats"}" }}\n'
        )
        self.command = [find_program("nats-server"), "--config", str(config)]

    def ping(self) -> None:
        self.ask(JetStreamContext.account_info)

    def ask(self, question: Callable[[JetStreamContext], Awaitable[ResultT]]) -> ResultT:
        """Connect, ask JetStream something, and return the answer."""
        return self._run(lambda client: question(client.jetstream(timeout=10)))

    def _run(self, work: Callable[[Client], Awaitable[ResultT]]) -> ResultT:
        async def connected() -> ResultT:
            client = await connect(self.url())
            try:
                return await work(client)
            finally:
                await client.close()

        return asyncio.run(connected())

    def declare(self) -> None:
        async def declare(stream: JetStreamContext) -> None:
            for name, subjects in SUBJECTS.items():
                window = WINDOWS[self.deduplicate]
                config = StreamConfig(name, subjects=subjects, discard=DiscardPolicy.NEW, duplicate_window=window)
                await stream.add_stream(config)

        self.ask(declare)

    def limit(self, *, full: bool) -> None:
        """Make the stream full as it is, or let it grow again."""

        async def limit(stream: JetStreamContext) -> None:
            info = await stream.stream_info("WRITTEN")
            info.config.max_msgs = max(info.state.messages, 1) if full else -1
            await stream.update_stream(info.config)

        self.ask(limit)

    def publisher(self, port: int, *, dead: bool = False) -> dict[str, Any]:
        subject = SUBJECTS["DEAD"][0] if dead else "{topic}"
        options = {"servers": self.url(port), "subject": subject, "timeout": TIMEOUT}
        return {"BACKEND": "django_outbox.brokers.nats.JetStreamPublisher", "OPTIONS": options}

    def url(self, port: int | None = None) -> str:
        return f"nats://127.0.0.1:{port or self.port}"

    def depth(self) -> int:
        async def count(stream: JetStreamContext) -> int:
            return sum([(await stream.stream_info(name)).state.last_seq for name in SUBJECTS])

        return self.ask(count) - Positions(self.nursery.logs).total

    def version(self) -> str:
        async def ask(client: Client) -> str:
            version = client.connected_server_version
            return f"NATS {version.major}.{version.minor}.{version.patch}"

        return self._run(ask)


async def connect(url: str) -> Client:
    """Return a client that connects once, and leaves it to its caller to tell of errors."""
    return await nats.connect(url, allow_reconnect=False, connect_timeout=5, error_cb=_ignore)


async def _ignore(_error: Exception) -> None:
    """By default the client writes a traceback for each error to standard error."""
