"""A writer: a process that enqueues in real transactions for as long as it is allowed to, whatever breaks meanwhile.

It reads from standard input, line by line, how many committed messages it may have written by now, and it ends when
they are all written or when the input ends. All writers share the keys, and their transactions overlap. What it
committed and what it rolled back stands in its journal, one line a message:
`<message id> <key> <number within the writer and key> <kind> <from> <to>`. The last two are times of the monotonic
clock, which all processes share. The message got its place in the order of its key between them:

- Without the key's lock they are taken before BEGIN and after COMMIT.
- With the lock they are the same time, taken while the lock was held, and so are strictly in the order of the commits.

A commit whose outcome is unknown, because the connection was lost, does not occur: the writer chooses the ids of the
messages, and repeats the transaction until its outcome is known. Such messages have the times of all attempts together.
"""

import datetime
import os
import random
import select
import sys
import time
import uuid
from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import DatabaseError, InterfaceError, connection, transaction
from django.utils import timezone

from django_outbox import OutboxMessage, enqueue, enqueue_many
from tests.faults.plan import MAX_MESSAGE, Kind, is_locked, type_of

PATIENCE = 180
"""Seconds for which a transaction is repeated, before the writer gives up."""

MAX_NESTING = 28
"""Lists around a part of a payload: MySQL and MariaDB take 31 levels."""

HOT_KEYS = 5
"""Number of keys that get half of the messages, so that transactions of one key overlap often."""

SIZES = (1, 1, 2, 3, 5, 10, 40)
"""Numbers of messages, one of which is drawn for each transaction."""

UNKEYED = 0.2
"""Share of the messages that have no key."""

Interval = tuple[float, float]


class RolledBack(Exception):
    """Ends a transaction that is not to be committed."""


@dataclass(frozen=True)
class Planned:
    id: uuid.UUID
    key: str
    n: int
    kind: Kind
    type: str
    topic: str
    headers: dict[str, Any]
    payload: dict[str, Any]
    delay: float
    locked: bool


@dataclass(frozen=True)
class Transaction:
    """Messages that are written together.

    Attributes:
        many: whether they are written by one call of `enqueue_many`, instead of one by one.
        hold: seconds for which the transaction stays open between two messages, and after the last one.
    """

    messages: list[Planned]
    rolled_back: bool
    many: bool
    hold: float


class Writer:
    """Makes up transactions.

    Args:
        poison: the kinds of the thousandth of the messages that deserve to fail; none if there are no kinds.
        unroutable: share of the messages that are unroutable, apart from those.
        hold: longest time in seconds for which a transaction stays open.
        giants: how many messages nearly as large as the broker allows to write.
    """

    def __init__(
        self,
        *,
        number: int,
        keys: int,
        seed: int,
        poison: Sequence[str],
        unroutable: float,
        hold: float,
        giants: int,
    ) -> None:
        self._rand = random.Random(f"{seed}/{number}")
        self._keys = [f"key-{key}" for key in range(keys)]
        self._numbers = dict.fromkeys(self._keys, 0)
        self._poison = [Kind(each) for each in poison]
        self._unroutable = unroutable
        self._hold = hold
        self._giants = giants
        self._count = 0
        self._prefix = (seed % 2**31 << 32 | number) << 64

    def transaction(self, room: int) -> Transaction:
        """Return a transaction of at most `room` messages."""
        rolled_back = self._rand.random() < 0.1
        numbers = dict(self._numbers)
        size = min(self._rand.choice(SIZES), room)
        many = self._rand.random() < size / 5
        messages: list[Planned] = []
        owned = ""
        for _ in range(size):
            key = self._key()
            if is_locked(key) and not many:
                # One by one, keys would be locked in an order by chance, and transactions would deadlock.
                key = owned = owned or key
            messages.append(self._message(key, numbers, rolled_back))
        if not rolled_back:
            self._numbers = numbers
        return Transaction(messages, rolled_back, many, self.pause() / size)

    def pause(self) -> float:
        return self._rand.uniform(0, self._hold) if self._rand.random() < 0.7 else 0.0

    def _key(self) -> str:
        if self._rand.random() < UNKEYED:
            return ""
        return self._rand.choice(self._keys[:HOT_KEYS] if self._rand.random() < 0.5 else self._keys)

    def _message(self, key: str, numbers: dict[str, int], rolled_back: bool) -> Planned:
        rand = self._rand
        self._count += 1
        n = 0
        if key:
            n = numbers[key] = numbers[key] + 1
        kind = Kind.ROLLED_BACK if rolled_back else self._kind()
        headers = {"CC": "text"} if kind is Kind.REFUSED else {}
        topic = "nowhere" if kind is Kind.UNROUTABLE else ""
        payload = {"key": key, "n": n, "filling": self._nested(self._filling(kind))}
        delay = rand.uniform(0.1, 3) if rand.random() < 0.005 else 0.0
        id = uuid.UUID(int=self._prefix | self._count)
        return Planned(id, key, n, kind, type_of(id.hex, key), topic, headers, payload, delay, is_locked(key))

    def _kind(self) -> Kind:
        if self._poison and self._rand.random() < 0.001:
            return self._rand.choice(self._poison)
        return Kind.UNROUTABLE if self._rand.random() < self._unroutable else Kind.GOOD

    def _nested(self, filling: Any) -> Any:
        for _ in range(self._rand.choice((0, 0, 0, MAX_NESTING))):
            filling = [filling]
        return filling

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


def write(work: Transaction) -> list[Interval]:
    """Run a transaction until its outcome is known; return when each of its messages got its place in its key."""
    begin = time.monotonic()
    repeated = False
    while True:
        moments: list[float] = []
        try:
            with transaction.atomic():
                enqueue_all(work, moments)
                if work.rolled_back:
                    raise RolledBack
            end = time.monotonic()
        except RolledBack:
            end = time.monotonic()
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            if time.monotonic() > begin + PATIENCE:
                raise
            sys.stderr.write(f"again: {type(error).__name__}: {str(error).strip()}\n")
            time.sleep(0.1)
            repeated = True
            continue
        return [
            (moment, moment) if each.locked and not repeated else (begin, end)
            for each, moment in zip(work.messages, moments, strict=True)
        ]


def enqueue_all(work: Transaction, moments: list[float]) -> None:
    """Enqueue the messages of a transaction; `moments` gets for each a time after that and before the commit."""
    if not work.many:
        for each in work.messages:
            enqueue(
                each.type,
                each.payload,
                key=each.key,
                topic=each.topic,
                headers=each.headers,
                message_id=each.id,
                delay=each.delay or None,
                lock_key=each.locked,
            )
            moments.append(time.monotonic())
            time.sleep(work.hold)
    else:
        enqueue_many(
            (
                OutboxMessage(
                    message_id=each.id,
                    type=each.type,
                    payload=each.payload,
                    key=each.key,
                    topic=each.topic,
                    headers=each.headers,
                    **({"available_at": timezone.now() + datetime.timedelta(seconds=each.delay)} if each.delay else {}),
                )
                for each in work.messages
            ),
            lock_key=any(each.locked for each in work.messages),
        )
        moments.extend([time.monotonic()] * len(work.messages))
        time.sleep(work.hold * len(work.messages))


def written_line(each: Planned, interval: Interval) -> str:
    low, high = interval
    return f"{each.id.hex} {each.key or '-'} {each.n} {each.kind.value} {low:.7f} {high:.7f}\n"


def allowances() -> Generator[int, bool, None]:
    """Yield the number of messages that may be written by now; `send(True)` blocks until it grows."""
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


def main(*, messages: int, journal: str, **options: Any) -> None:
    writer = Writer(**options)
    committed = 0
    allowed = allowances()
    limit = next(allowed)
    with Path(journal).open("w") as lines:
        while committed < messages:
            try:
                limit = allowed.send(committed >= limit)
            except StopIteration:
                return
            if committed >= limit:
                continue
            work = writer.transaction(messages - committed)
            intervals = write(work)
            if not work.rolled_back:
                committed += len(work.messages)
            lines.writelines(written_line(*pair) for pair in zip(work.messages, intervals, strict=True))
            lines.flush()
