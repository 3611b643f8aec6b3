"""A writer of messages that wait: many keys with a delay, and one key with a long queue behind its delayed head.

It has a journal as each writer has one, and another with a line for each message: `<message id> <key> <from> <to>`, the
times of the monotonic clock between which it must not arrive. It ends when the messages become due, or with its input.
"""

import select
import sys
import time
import uuid
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from tests.faults.plan import Kind, type_of
from tests.faults.workload import Interval, Planned, Transaction, write, written_line

CHUNK = 1_000
"""Messages in a transaction."""


def planned(number: int, seed: int, keys: int, queue: int, due: float) -> Iterator[Planned]:
    """Yield the messages, with the delays that are left when each is taken.

    Args:
        keys: number of keys with one message each.
        queue: number of messages of the key with the queue.
        due: when they become due, by the monotonic clock.
    """
    prefix = (seed % 2**31 << 32 | number) << 64
    for count in range(keys + queue):
        position = max(0, count - keys)
        # Keys with numbers that no other writer uses.
        key = f"key-{number}{min(count, keys):06}"
        id = uuid.UUID(int=prefix | count)
        delay = 0.0 if position else max(0.1, due - time.monotonic())
        payload = {"key": key, "n": position + 1}
        yield Planned(id, key, position + 1, Kind.GOOD, type_of(id.hex, key), "", {}, payload, delay, False)


def main(*, number: int, seed: int, keys: int, queue: int, delay: float, written: str, journal: str) -> None:
    due = time.monotonic() + delay
    messages = planned(number, seed, keys, queue, due)
    rows: list[tuple[Planned, Interval]] = []
    with Path(written).open("w") as lines:
        while chunk := list(islice(messages, CHUNK)):
            done = list(zip(chunk, write(Transaction(chunk, rolled_back=False, many=True, hold=0.0)), strict=True))
            lines.writelines(written_line(each, interval) for each, interval in done)
            rows += done
    # A message of the queue waits for its head, and each of the others for its own delay.
    Path(journal).write_text("".join(f"{each.id.hex} {each.key} {end:.7f} {due:.7f}\n" for each, (_, end) in rows))
    select.select([sys.stdin], [], [], max(0.0, due - time.monotonic()))
