"""The messages that the benchmarks enqueue: the same ones for the same seed."""

import random
import string
from collections.abc import Iterator, Sequence
from itertools import islice

from django.db import transaction

from django_outbox import OutboxMessage, enqueue_many

CHUNK = 10_000


def make_messages(
    count: int, *, seed: int, size: int = 250, keys: int = 0, topics: Sequence[str] = ()
) -> Iterator[OutboxMessage]:
    """Yield unsaved messages.

    Args:
        count: how many.
        seed: of what is random in them.
        size: about how many bytes of JSON a payload has.
        keys: over how many keys they are spread, in a random order; 0 for none.
        topics: what they are spread over evenly, the messages of a key over one; none where it is empty.
    """
    source = random.Random(seed)  # noqa: S311 - repeatable, and no secret
    text = "".join(source.choices(string.ascii_letters, k=max(size - 60, 0)))
    for number in range(count):
        order = source.randrange(keys) if keys else number
        key = f"order-{order}" if keys else ""
        topic = topics[order % len(topics)] if topics else ""
        payload = {"id": number, "total": source.randrange(100_000), "text": text}
        yield OutboxMessage(type="order.created", topic=topic, key=key, payload=payload)


def fill(count: int, *, seed: int, size: int = 250, keys: int = 0, topics: Sequence[str] = ()) -> None:
    """Enqueue the messages that `make_messages` makes, in transactions of ten thousand."""
    made = make_messages(count, seed=seed, size=size, keys=keys, topics=topics)
    for _ in range(0, count, CHUNK):
        with transaction.atomic():
            enqueue_many(islice(made, CHUNK))
