"""The claim's algorithm: which messages to read, and how a relay comes to own their keys.

The hash of a key is its partition, and the partitions are divided into `SLOTS` ranges, the slots. A relay owns a key
while it holds the lock of the key's slot. That lock is on a number, not on a message, so ownership does not change
while messages of the key arrive late, are requeued or are deleted.

The oldest undelivered message of a partition is its head. A claim lists the heads in the order of their partitions, one
step for each partition however many messages it has. It locks the slot of the first head that is due; if another relay
holds that slot, one step leads past all of it.
"""

import abc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from django_outbox.stores.cursor import LAST_PARTITION, SPARED, Cursor, Span
from django_outbox.stores.timeline import MAX_ROWS, SWEEP_ROWS, Fresh, Piece, Timeline

Row = tuple[Any, ...]
"""The columns of a message from `id` to `error_class`, then its size, then columns that the store adds for itself."""

SIZE = 10
"""The index of the size in a row: the bytes of payload and headers."""

SLOT_BITS = 23
SLOT_SIZE = 2**SLOT_BITS
SLOTS = (LAST_PARTITION + 1) // SLOT_SIZE
"""Number of locks that the keys of a publisher share: enough for dozens of relays, and few enough for PostgreSQL's lock
table."""

MAX_STEPS = 20_000
"""Maximum number of heads that one claim lists: each step is one probe of an index."""

PARTITION_SHARE = 8
MANY_PARTITIONS = 64
"""A large batch comes from an eighth as many partitions as it has messages, if possible, because a message behind its
head costs less than a head. A small batch comes from as many partitions as possible."""

MAX_DEPTH = 100
"""Maximum number of messages of one partition in a batch, because they are published one after the other."""


class OwnedHeads(NamedTuple):
    """The result of one listing of heads.

    Args:
        partitions: the partitions that are owned now and had a due head, in their order.
        after: the last partition that was listed.
        at_end: whether all of the span was listed.
        steps: how many steps it took.
        slots_met: number of free slots that the claim has met so far, including the spared ones.
    """

    partitions: list[int]
    after: int
    at_end: bool
    steps: int
    slots_met: int


class Queued(NamedTuple):
    """A message in the queue of its partition, whether it is due, and the bytes of its payload and headers."""

    partition: int
    id: int
    due: bool | None
    size: int


class BatchReader(abc.ABC):
    """The reads that a claim consists of: the part of a store that differs most between databases."""

    @abc.abstractmethod
    def read_unkeyed(self, publisher: str, *, limit: int, max_bytes: int, after: Any) -> list[Row]:
        """Read due messages without a key, those due longest first, and lock them where that is possible.

        A row ends with its place in that order, as `after` takes it; None is the beginning. At least one message is
        read, however large it is.
        """

    @abc.abstractmethod
    def own_heads(self, publisher: str, span: Span, *, wanted: int, max_steps: int, slots_met: int) -> OwnedHeads:
        """List at most `max_steps` heads, and own at most `wanted` partitions of due ones until the claim ends.

        `slots_met` is the number of free slots that count as met already; every `SPARED`th is left to other relays.
        """

    @abc.abstractmethod
    def read_place(self) -> Any:
        """Return the place of this moment in the order of due times."""

    @abc.abstractmethod
    def list_fresh(self, publisher: str, after: Any, *, limit: int) -> list[Fresh]:
        """List messages after a place that have a key and are due, heads or not, those due longest first."""

    @abc.abstractmethod
    def sweep_heads(self, publisher: str, after: int, *, limit: int) -> Piece:
        """List the heads of the partitions after this one, by a number of entries of their index."""

    @abc.abstractmethod
    def find_due(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        """Return the partitions with a due head."""

    @abc.abstractmethod
    def own(self, publisher: str, partitions: Sequence[int]) -> set[int]:
        """Own these partitions until the claim ends, unless another relay has them; return the owned ones."""

    @abc.abstractmethod
    def read_partitions(
        self, publisher: str, partitions: Sequence[int], *, max_depth: int, max_bytes: int
    ) -> list[Row]:
        """Read messages of owned partitions by id, and lock them where that is possible.

        The messages of a partition end before the first that is not due, or that another transaction has locked.

        If not all fit, each partition gets its share, in the given order; at least one message is read. A row ends
        with its partition.
        """


def read_batch(store: BatchReader, publisher: str, cursor: Cursor, *, limit: int, max_bytes: int) -> list[Row]:
    """Read a batch of keyed and unkeyed messages. Claims alternate in which of them they read first.

    If the last listing met many heads that were not due, unkeyed messages go first for a while, and a batch that has
    any contains no keyed ones. At least one message is read, however large it is.
    """
    keyed_first = cursor.begin_claim()
    rows: list[Row] = []
    for keyed in (keyed_first, not keyed_first):
        room, bytes_left = limit - len(rows), max_bytes - total_size(rows)
        # A batch that is nearly full is not worth another statement; the next claim begins with the other kind.
        if room <= limit // 4 or bytes_left <= 0:
            break
        if not keyed:
            rows += read_unkeyed(store, publisher, cursor, limit=room, max_bytes=bytes_left)
        elif not rows or cursor.may_list_heads:
            rows += read_keyed(store, publisher, cursor, limit=room, max_bytes=bytes_left)
    return rows


def read_unkeyed(store: BatchReader, publisher: str, cursor: Cursor, *, limit: int, max_bytes: int) -> list[Row]:
    """Read due messages without a key, from the cursor on or as a sweep."""
    rows = store.read_unkeyed(publisher, limit=limit, max_bytes=max_bytes, after=cursor.unkeyed.start())
    cursor.unkeyed.advance(len(rows), rows[-1][-1] if rows else None)
    return rows


def read_keyed(store: BatchReader, publisher: str, cursor: Cursor, *, limit: int, max_bytes: int) -> list[Row]:
    """Read due messages that have a key, and own their partitions."""
    timeline = cursor.timeline
    if timeline is None:
        partitions = own_partitions(store, publisher, cursor, limit=limit)
    else:
        partitions = own_by_time(store, publisher, timeline, limit=limit)
        if timeline.over:
            cursor.end_time()
    if not partitions:
        return []
    max_depth = min(max(limit // len(partitions), 1), MAX_DEPTH)
    rows = store.read_partitions(publisher, partitions, max_depth=max_depth, max_bytes=max_bytes)
    served, is_full = {row[-1] for row in rows}, total_size(rows) >= max_bytes
    if timeline is not None:
        timeline.note_read(partitions, served, is_full=is_full)
    else:
        cursor.end_read(rows=len(rows))
        if is_full:
            cursor.return_to_unserved(partitions, served)
    return sorted(rows)


def own_partitions(store: BatchReader, publisher: str, cursor: Cursor, *, limit: int, spare: bool = True) -> list[int]:
    """Own partitions with a due head, starting at the cursor and going around all of them, and return them.

    With `spare`, some slots are left to other relays.
    """
    wanted = count_wanted(limit)
    owned: list[int] = []
    steps = 0
    slots_met = slots_before = cursor.begin_listing(spare=spare)
    more = True
    while more:
        heads = store.own_heads(
            publisher, cursor.span, wanted=wanted - len(owned), max_steps=MAX_STEPS - steps, slots_met=slots_met
        )
        owned += heads.partitions
        steps += heads.steps
        slots_met = heads.slots_met
        more = cursor.advance(heads.after, at_end=heads.at_end)
    cursor.end_listing(steps=steps, owned=len(owned))
    if cursor.complete and slots_met > slots_before and spare:
        # The only free slot is the one that it has spared.
        return own_partitions(store, publisher, cursor, limit=limit, spare=False)
    return owned


def own_by_time(store: BatchReader, publisher: str, timeline: Timeline, *, limit: int) -> list[int]:
    """Own partitions with due heads, found by time instead of by a listing of all heads, and return them."""
    wanted = count_wanted(limit)
    if timeline.place is None:
        timeline.begin(store.read_place())
    if timeline.may_read:
        timeline.advance(store.list_fresh(publisher, timeline.start(), limit=MAX_ROWS))
    if timeline.may_sweep(wanted):
        timeline.begin_piece()
        timeline.end_piece(store.sweep_heads(publisher, timeline.swept_to, limit=SWEEP_ROWS))
    candidates = timeline.candidates()
    if not candidates:
        return []
    found = store.find_due(publisher, candidates)
    timeline.note_lookup(candidates, found)
    due = [partition for partition in candidates if partition in found][:wanted]
    owned = store.own(publisher, due) if due else set()
    timeline.note_owned(due, owned)
    return [partition for partition in due if partition in owned]


def count_wanted(limit: int) -> int:
    """Return the maximum number of partitions of a batch."""
    return max(limit // PARTITION_SHARE, min(limit, MANY_PARTITIONS))


def is_spared(slots_met: int) -> bool:
    """Return whether the next free slot is left to other relays, given how many were met before."""
    return slots_met >= 0 and slots_met % SPARED == SPARED - 1


def total_size(rows: Iterable[Row]) -> int:
    """Return the bytes of the payloads and headers of rows."""
    return sum(row[SIZE] for row in rows)


def choose(queues: Iterable[Queued], partitions: Sequence[int], max_bytes: int) -> list[int]:
    """Return the ids of the messages to read, partition by partition, up to a total size.

    Each partition gets its first message and no more than its share of the bytes, so that large messages of one leave
    room for the others. Messages behind one that is not due are left out. One message is chosen however large it is.
    The messages of each partition must be in the order of their ids.
    """
    share = max(max_bytes // max(len(partitions), 1), 1)
    sizes: dict[int, list[tuple[int, int]]] = {partition: [] for partition in partitions}
    for message in due_only(queues):
        sizes[message.partition].append((message.id, message.size))
    shares = (first_within(queue, share) for queue in sizes.values())
    return [id for id, _ in first_within(itertools.chain.from_iterable(shares), max_bytes)]


def due_only(queues: Iterable[Queued]) -> Iterator[Queued]:
    """Yield the messages of each partition up to the first that is not due."""
    waiting = None
    for message in queues:
        if not message.due:
            waiting = message.partition
        if message.partition != waiting:
            yield message


def first_within(sizes: Iterable[tuple[int, int]], max_bytes: int) -> list[tuple[int, int]]:
    """Return the first messages, given as ids and sizes, up to a total size and at least one."""
    found: list[tuple[int, int]] = []
    total = 0
    for id, size in sizes:
        if total >= max_bytes:
            break
        found.append((id, size))
        total += size
    return found
