"""How a claim finds the keys whose turn it is: a walk from partition to partition, never through their depth.

The oldest unprocessed message of a partition is its head. Whoever has locked the head owns the partition: its messages
are delivered in the order of their ids, so that none can go before the head. A head that waits for its retry, or that
is locked by another relay, is stepped over, and its partition waits.
"""

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_outbox.databases.floors import Floor

LAST_PARTITION = 2**31 - 1

MAX_STEPS = 20_000
"""How many partitions one claim looks at, at the most: each step is one probe of an index."""

PARTITION_SHARE = 8
MANY_PARTITIONS = 64
"""A large batch comes from an eighth as many partitions, if it can: a message behind its head costs less than a head. A
small one comes from as many as it can."""

MAX_DEPTH = 100
"""How many messages of one partition a batch takes at the most, since they are published one after the other."""


CHEAP_WALK = 0.001
"""Seconds that a walk may spend on heads that are not due, without the next one being put off."""

SPARING = 20
"""How many times as long as a walk wasted in excess of that, there is no other one where there is other work."""

MAX_PAUSE = 1.0
"""Seconds after which there is a walk however much the last one wasted."""


class Head(NamedTuple):
    """An unprocessed message at, or behind, the head of its partition, and whether it is due."""

    partition: int
    id: int
    due: bool | None


@dataclass(slots=True)
class Turn:
    """What one worker remembers from claim to claim, so that every key has its turn.

    Args:
        after: the partition after which the next walk begins; workers begin anywhere, so as not to meet.
        keyed_first: whether the next claim begins with messages that have a key; it changes from claim to claim.
        floor: where the next claim begins among messages without a key.
        complete: whether no partition is left that was not looked at since one was last found.
        lap: where the fruitless look at all partitions began that is not complete yet.
        next_walk: when the next walk is worth its while, for many heads that were not due have just been looked at.
    """

    # Spreads load, hides nothing.
    after: int = field(default_factory=lambda: random.randrange(LAST_PARTITION))  # noqa: S311
    keyed_first: bool = False
    floor: Floor = field(default_factory=Floor)
    complete: bool = True
    lap: int | None = None
    next_walk: float = 0.0
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)

    @property
    def may_walk(self) -> bool:
        """Whether to look for heads though there is other work."""
        return self.clock() >= self.next_walk

    def note_walk(self, seconds: float, looked: int, due: int) -> None:
        """Put the next walk off by as much as this one wasted on heads that were not due."""
        wasted = seconds * (looked - due) / max(looked, 1)
        self.next_walk = self.clock() + min(max(wasted - CHEAP_WALK, 0.0) * SPARING, MAX_PAUSE)

    @property
    def over(self) -> bool:
        """Whether everything was looked at since something was last found."""
        return self.complete and self.floor.swept


def find_heads(
    turn: Turn,
    limit: int,
    walk: Callable[[int, int], Sequence[Head]],
    lock: Callable[[Collection[int]], Collection[int]],
) -> dict[int, int]:
    """Return the partitions to claim with the ids of their heads: from where `turn` stands.

    Args:
        turn: where to begin; it is moved on.
        limit: the most messages of the batch.
        walk: returns the heads of up to so many partitions, as its second argument says, after the one that its first
            argument says, in their order.
        lock: locks those of the given heads that are still due and that nobody else has locked, and returns their ids.
    """
    wanted = max(limit // PARTITION_SHARE, min(limit, MANY_PARTITIONS))
    found: dict[int, int] = {}
    after, step, steps = turn.after, wanted, 0
    began, looked, ready = turn.clock(), 0, 0
    start = after if turn.lap is None else turn.lap
    # The partitions behind the start come first, then those before it.
    last = LAST_PARTITION if after >= start else start
    turn.complete = False
    while len(found) < wanted and steps < MAX_STEPS:
        heads = walk(after, step)
        at_end = len(heads) < step or heads[-1].partition >= last
        due = [head for head in heads if head.due and head.partition <= last]
        looked, ready = looked + len(heads), ready + len(due)
        if len(due) > wanted - len(found):
            due = due[: wanted - len(found)]
            at_end = False
            after = due[-1].partition
        elif heads:
            after = heads[-1].partition
        if due:
            locked = lock([head.id for head in due])
            found.update((head.partition, head.id) for head in due if head.id in locked)
        if at_end and (last < LAST_PARTITION or not start):
            after, turn.complete = 0, True
            break
        if at_end:
            after, last = 0, start
        steps += step
        step = min(step * 4, MAX_STEPS)
    turn.note_walk(turn.clock() - began, looked, ready)
    turn.after = after
    turn.lap = None if found or turn.complete else start
    return found


def read_from_heads(
    heads: Mapping[int, int],
    depth: int,
    followers: Callable[[Mapping[int, int], int], Iterable[Head]],
    read: Callable[[Collection[int]], list[tuple[Any, ...]]],
) -> list[tuple[Any, ...]]:
    """Read messages of partitions from their heads on, where that takes two statements.

    Args:
        heads: the partitions with the ids of their heads.
        depth: the most messages of one partition.
        followers: returns the next messages behind each head, up to so many a partition, by partition and in order.
        read: reads those of the messages that are still due, in the order of their ids; a row begins with the id.
    """
    chosen = {id: partition for partition, id in heads.items()}
    if depth > 1:
        chosen |= {follower.id: follower.partition for follower in due_behind(followers(heads, depth - 1))}
    # Where nothing is locked yet, another relay may have had its turn since the heads were read.
    return unbroken(read(list(chosen)), chosen)


def due_behind(followers: Iterable[Head]) -> Iterator[Head]:
    """Yield those followers before which, in their partition, there is none that is not due."""
    waiting = None
    for follower in followers:
        if not follower.due:
            waiting = follower.partition
        if follower.partition != waiting:
            yield follower


def unbroken(rows: list[tuple[Any, ...]], partitions: Mapping[int, int]) -> list[tuple[Any, ...]]:
    """Return the rows before which, in their partition, none is missing that was chosen.

    Args:
        rows: what was read; a row begins with the id.
        partitions: the ids that were chosen, with their partitions: those of a partition in their order.
    """
    if len(rows) == len(partitions):
        return rows
    read = {row[0] for row in rows}
    broken: set[int] = set()
    whole = set()
    for id, partition in partitions.items():
        if id not in read:
            broken.add(partition)
        elif partition not in broken:
            whole.add(id)
    return [row for row in rows if row[0] in whole]
