"""A stream of NATS JetStream: the billing service reads the orders in it."""

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from nats.js.errors import NotFoundError
from project.brokers import stream_name

from shop import conf
from shop.destinations import REPORTS, Destination

ResultT = TypeVar("ResultT")


class JetStreamDestination(Destination):
    """A stream that has the subjects of orders at first, and those of reports once it is repaired."""

    drops_duplicates = True
    repair_text = f"add the subject {REPORTS} to the stream"

    def __init__(self) -> None:
        self._stream = stream_name(conf.EXCHANGE)
        self.name = f"NATS, stream {self._stream}"

    def prepare(self) -> None:
        async def prepare(context: JetStreamContext) -> None:
            config = StreamConfig(self._stream, subjects=[f"{conf.EXCHANGE}.order.>"])
            try:
                await context.update_stream(config)
            except NotFoundError:
                await context.add_stream(config)
            billing = ConsumerConfig(
                durable_name=stream_name(conf.BILLING_QUEUE),
                ack_policy=AckPolicy.EXPLICIT,
                filter_subject=f"{conf.EXCHANGE}.order.placed",
            )
            await context.add_consumer(self._stream, billing)

        _ask(prepare)

    def repair(self) -> None:
        subjects = [f"{conf.EXCHANGE}.order.>", f"{conf.EXCHANGE}.report.>"]
        _ask(lambda context: context.update_stream(StreamConfig(self._stream, subjects=subjects)))

    def read_arrivals(self) -> list[tuple[uuid.UUID, Any]]:
        async def read(context: JetStreamContext) -> list[tuple[uuid.UUID, Any]]:
            count = (await context.stream_info(self._stream)).state.messages
            consumer = await context.add_consumer(self._stream, ConsumerConfig(ack_policy=AckPolicy.NONE))
            subscription = await context.pull_subscribe_bind(consumer.name, stream=self._stream)
            found: list[tuple[uuid.UUID, Any]] = []
            while len(found) < count:
                for message in await subscription.fetch(min(count - len(found), 500)):
                    headers = message.headers or {}
                    found.append((uuid.UUID(headers["outbox-message-id"]), json.loads(message.data)))
            return found

        return _ask(read)


def _ask(question: Callable[[JetStreamContext], Awaitable[ResultT]]) -> ResultT:
    """Connect, ask JetStream something, and return the answer."""

    async def connected() -> ResultT:
        client = await nats.connect(conf.BROKER_URL)
        try:
            return await question(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(connected())
