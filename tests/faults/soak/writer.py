"""The writers of a soak. What they committed is in the database: in the row `n` of each key, and of each writer.

A transaction increments `n` and enqueues messages with the numbers that this gave it, so the order of a key is that of
its numbers, and nothing has to be noted elsewhere that a crash could forget.
"""

import itertools
import random
import signal
import time
from collections.abc import Iterator
from types import FrameType

from django.db import connection, transaction

from django_outbox import OutboxMessage, enqueue, enqueue_many

KEYS = 100
"""Keys that the writers share."""

UNKEYED = 0.2
"""Share of the messages that have no key."""

BURST_PART = 20
"""Messages in a transaction of a burst."""

BACKLOG_KEYS, BACKLOG_EACH, BACKLOG_UNKEYED = 400, 20, 2_000
"""Keys of the backlog, and messages of each of them and without a key in one transaction: 10,000 together."""


def count(name: str, by: int) -> int:
    """Add to a counter, and return its old value."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO soak_counter VALUES (%s, %s) "
            "ON CONFLICT (name) DO UPDATE SET n = soak_counter.n + excluded.n RETURNING n",
            [name, by],
        )
        return int(cursor.fetchone()[0]) - by


def messages(
    counter: str, first: int, number: int, *, keyed: bool, kind: str = "soak.steady"
) -> Iterator[OutboxMessage]:
    for n in range(first, first + number):
        payload = {"counter": counter, "n": n, "at": time.time(), "text": "x" * random.randrange(50, 800)}
        yield OutboxMessage(type=kind, payload=payload, key=counter if keyed else "")


def write(number: int, many: int) -> None:
    """Write messages of one key, or without a key, in one transaction."""
    keyed = random.random() >= UNKEYED
    counter = f"key-{random.randrange(KEYS)}" if keyed else f"writer-{number}"
    with transaction.atomic():
        found = list(messages(counter, count(counter, many), many, keyed=keyed))
        if many == 1:
            enqueue(found[0].type, found[0].payload, key=found[0].key)
        else:
            enqueue_many(found)


def write_backlog(total: int) -> None:
    """Write what is missing of a backlog, 10,000 messages in a transaction."""
    names = [f"backlog-{key}" for key in range(BACKLOG_KEYS)]
    part = BACKLOG_KEYS * BACKLOG_EACH + BACKLOG_UNKEYED
    while True:
        with transaction.atomic():
            first = count("backlog", BACKLOG_UNKEYED)
            if first * part // BACKLOG_UNKEYED >= total:
                transaction.set_rollback(True)
                return
            found = [messages("backlog", first, BACKLOG_UNKEYED, keyed=False, kind="soak.backlog")]
            for name in names:
                begin = count(name, BACKLOG_EACH)
                found.append(messages(name, begin, BACKLOG_EACH, keyed=True, kind="soak.backlog"))
            enqueue_many(itertools.chain.from_iterable(found))


def main(*, number: int = 0, rate: float = 0.0, burst: int = 0, every: float = 0.0, backlog: int = 0) -> None:
    """Write until SIGTERM.

    Args:
        rate: messages per second.
        burst: messages that are written at once, `every` so many seconds.
        backlog: write this many messages instead, and end.
    """
    if backlog:
        write_backlog(backlog)
        return
    stopping = False

    def stop(_number: int, _frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    due = time.monotonic()
    next_burst = due + every
    while not stopping:
        write(number, 1)
        if time.monotonic() >= next_burst:
            next_burst += every
            for _ in range(burst // BURST_PART):
                write(number, BURST_PART)
        # After a stall, it does not catch up.
        due = max(due + 1 / rate, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))
