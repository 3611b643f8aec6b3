"""The messages that the benchmarks enqueue: the same ones for the same seed."""

import json
import random
import string
from collections.abc import Iterator, Sequence
from itertools import islice

from django.db import transaction
from django.utils import timezone

from django_outbox import OutboxMessage, enqueue_many
from django_outbox.messages import Message

CHUNK = 10_000
"""Messages in a transaction."""


def make_topics(count: int = 4) -> list[str]:
    return [f"orders-{number}" for number in range(count)]


def make_messages(
    count: int, *, seed: int = 0, size: int = 250, keys: int = 0, topics: Sequence[str] = ()
) -> Iterator[OutboxMessage]:
    """Yield unsaved messages of about `size` bytes, spread evenly over topics; messages of one key share a topic."""
    source = random.Random(seed)
    text = "".join(source.choices(string.ascii_letters, k=max(size - 60, 0)))
    for number in range(count):
        order = source.randrange(keys) if keys else number
        key = f"order-{order}" if keys else ""
        topic = topics[order % len(topics)] if topics else ""
        payload = {"id": number, "total": source.randrange(100_000), "text": text}
        yield OutboxMessage(type="order.created", topic=topic, key=key, payload=payload)


def claimed(messages: Iterator[OutboxMessage]) -> list[Message]:
    now = timezone.now()
    return [
        Message(0, str(each.message_id), each.type, each.topic, each.key, json.dumps(each.payload).encode(), {}, now, 0)
        for each in messages
    ]


def fill(count: int, *, seed: int = 0, size: int = 250, keys: int = 0, topics: Sequence[str] = ()) -> None:
    made = make_messages(count, seed=seed, size=size, keys=keys, topics=topics)
    for _ in range(0, count, CHUNK):
        with transaction.atomic():
            enqueue_many(islice(made, CHUNK))
