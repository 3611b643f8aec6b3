"""A writer: a process that enqueues in real transactions for as long as it is allowed to, whatever breaks meanwhile.

It is told by lines on standard input how many committed messages it may have written by now, and it ends when they are
all written or when the input ends. What it committed and what it rolled back stands in its journal, one line a message:
`<message id> <key> <number within the key> <kind>`. An outcome that is unknown, for the connection was lost during the
commit, does not occur: the messages have ids of the writer's own, and the transaction is repeated until it is known.
"""

import datetime
import json
import os
import random
import select
import sys
import time
import uuid
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.plan import MAX_MESSAGE, POISON, Kind

PATIENCE = 180
"""Seconds for which a transaction is repeated, before the writer gives up."""

MAX_TRANSACTION = 40
"""How many messages one transaction has at the most."""


class RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


@dataclass(frozen=True)
class Planned:
    """A message that is to be written."""

    id: uuid.UUID
    key: str
    n: int
    kind: Kind
    type: str
    topic: str
    headers: dict[str, Any]
    payload: dict[str, Any]
    delay: float


class Writer:
    """Makes up messages, from its own part of the keys, and writes them."""

    def __init__(self, *, number: int, writers: int, keys: int, seed: int, poison: bool, giants: int) -> None:
        self._rand = random.Random(f"{seed}/{number}")
        self._keys = [f"key-{key}" for key in range(keys) if key % writers == number]
        self._numbers = dict.fromkeys(self._keys, 0)
        self._poison = poison
        self._giants = giants
        self._count = 0
        self._prefix = (seed % 2**31 << 32 | number) << 64

    def transaction(self, room: int) -> tuple[list[Planned], bool]:
        """Return the messages of a transaction, of at most so many messages, and whether it is to be rolled back."""
        rolled_back = self._rand.random() < 0.1
        numbers = dict(self._numbers)
        size = min(self._rand.choice((1, 1, 2, 3, 5, 10, MAX_TRANSACTION)), room)
        messages = [self._message(numbers, rolled_back) for _ in range(size)]
        if not rolled_back:
            self._numbers = numbers
        return messages, rolled_back

    def _message(self, numbers: dict[str, int], rolled_back: bool) -> Planned:
        rand = self._rand
        self._count += 1
        key = "" if rand.random() < 0.2 else rand.choice(self._keys)
        n = 0
        if key:
            n = numbers[key] = numbers[key] + 1
        kind = Kind.ROLLED_BACK if rolled_back else self._kind()
        # The key decides on the queue: there is no order between two queues.
        queue = "classic" if int(key.partition("-")[2] or rand.randrange(2)) % 2 else "quorum"
        headers = {"CC": "text"} if kind is Kind.REFUSED else {}
        topic = "nowhere" if kind is Kind.UNROUTABLE else ""
        payload = {"key": key, "n": n, "filling": self._filling(kind)}
        delay = rand.uniform(0.1, 3) if rand.random() < 0.005 else 0.0
        id = uuid.UUID(int=self._prefix | self._count)
        return Planned(id, key, n, kind, f"{queue}.written", topic, headers, payload, delay)

    def _kind(self) -> Kind:
        if self._poison and self._rand.random() < 0.001:
            return self._rand.choice(POISON)
        return Kind.GOOD

    def _filling(self, kind: Kind) -> str:
        size = self._rand.randrange(20, 400)
        chance = self._rand.random()
        if chance < 0.005:
            size = 20_000
        elif chance < 0.006 and self._giants:
            self._giants -= 1
            size = MAX_MESSAGE - 1000
        if kind is Kind.TOO_LARGE:
            size = MAX_MESSAGE + 1000
        return self._rand.randbytes(min(size, 1000) // 2).hex().ljust(size, "x")


def write(messages: list[Planned], rolled_back: bool, many: bool) -> None:
    """Write messages in one transaction, and repeat that until its outcome is known."""
    from django.db import DatabaseError, InterfaceError, connection, transaction  # noqa: PLC0415 - after django.setup()

    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            with transaction.atomic():
                enqueue_all(messages, many)
                if rolled_back:
                    raise RolledBack
        except RolledBack:
            return
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            if time.monotonic() > deadline:
                raise
            sys.stderr.write(f"again: {type(error).__name__}: {str(error).strip()}\n")
            time.sleep(0.1)
        else:
            return


def enqueue_all(messages: list[Planned], many: bool) -> None:
    """Enqueue the messages of one transaction, one by one or all at once."""
    from django.utils import timezone  # noqa: PLC0415

    from django_outbox import OutboxMessage, enqueue, enqueue_many  # noqa: PLC0415

    if not many:
        for each in messages:
            enqueue(
                each.type,
                each.payload,
                key=each.key,
                topic=each.topic,
                headers=each.headers,
                message_id=each.id,
                delay=each.delay or None,
            )
    else:
        enqueue_many(
            OutboxMessage(
                message_id=each.id,
                type=each.type,
                payload=each.payload,
                key=each.key,
                topic=each.topic,
                headers=each.headers,
                **({"available_at": timezone.now() + datetime.timedelta(seconds=each.delay)} if each.delay else {}),
            )
            for each in messages
        )


def allowances() -> Generator[int, bool, None]:
    """Yield how many messages may be written by now; it blocks where `send(True)` says that this is awaited."""
    lines: deque[int] = deque([0])
    rest = b""
    while True:
        block = yield lines[-1]
        if select.select([0], [], [], None if block else 0)[0]:
            data = os.read(0, 65_536)
            if not data:
                return
            *complete, rest = (rest + data).split(b"\n")
            lines.extend(int(line) for line in complete)
            lines = deque([lines[-1]])


def main() -> None:
    """Write what `sys.argv[1]`, an object of JSON, tells."""
    import django  # noqa: PLC0415

    django.setup()
    options = json.loads(sys.argv[1])
    total = options.pop("messages")
    journal = Path(options.pop("journal"))
    writer = Writer(**options)
    many = random.Random(options["seed"])
    committed = 0
    allowed = allowances()
    limit = next(allowed)
    with journal.open("w") as lines:
        while committed < total:
            try:
                limit = allowed.send(committed >= limit)
            except StopIteration:
                return
            if committed >= limit:
                continue
            messages, rolled_back = writer.transaction(total - committed)
            write(messages, rolled_back, many=many.random() < len(messages) / 5)
            if not rolled_back:
                committed += len(messages)
            lines.writelines(f"{each.id.hex} {each.key or '-'} {each.n} {each.kind.value}\n" for each in messages)
            lines.flush()


if __name__ == "__main__":
    main()
