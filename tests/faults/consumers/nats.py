"""A consumer that reads streams of NATS by their sequence numbers.

JetStream delivers what a consumer has not acknowledged again only after a while, behind later messages. So this one
acknowledges nothing, keeps its positions in a file, and goes on from there over each new connection.
"""

import asyncio

from nats.aio.msg import Msg
from nats.errors import Error
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from tests.faults.brokers.nats import SUBJECTS, connect
from tests.faults.consumers.journals import Journals, consume
from tests.faults.positions import Positions

COUNT = 500


def read(url: str, journals: Journals) -> None:
    asyncio.run(_read(url, journals))


async def _read(url: str, journals: Journals) -> None:
    client = await connect(url)
    positions = Positions(journals.folder)
    try:
        context = client.jetstream(timeout=5)
        await asyncio.gather(*(_read_stream(context, name, journals, positions) for name in SUBJECTS))
    finally:
        await client.close()


async def _read_stream(context: JetStreamContext, stream: str, journals: Journals, positions: Positions) -> None:
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=positions[stream] + 1,
        inactive_threshold=30,
    )
    consumer = await context.add_consumer(stream, config)
    subscription = await context.pull_subscribe_bind(consumer.name, stream=stream)
    while not journals.stopping:
        try:
            messages = await subscription.fetch(COUNT, timeout=0.2)
        except asyncio.TimeoutError:
            continue
        last = positions[stream]
        for message in messages:
            last += 1
            if message.metadata.sequence.stream != last:
                raise ConnectionError(f"message {last} of {stream} is missing")
            _note(message, stream, journals)
        journals.flush()
        positions.note({stream: last})


def _note(message: Msg, stream: str, journals: Journals) -> None:
    headers = message.headers or {}
    id = headers["outbox-message-id"]
    if stream == "DEAD":
        journals.note_dead(id, again=False)
    else:
        journals.note(id, headers.get("outbox-key", ""), message.data, again=False)


if __name__ == "__main__":
    consume(read, (Error, asyncio.TimeoutError, EOFError))
