"""The claim's algorithm: which messages it reads, how a relay comes to own their keys, and where the next claim begins.

The hash of a key is its partition, and the partitions are divided into `SLOTS` ranges, the slots. A relay owns a key
while it holds the lock of the key's slot. That lock is on a number, not on a message, so ownership does not change
while messages of the key arrive late, are requeued or are deleted.

The oldest undelivered message of a partition is its head. A claim lists the heads in the order of their partitions, one
step for each partition however many messages it has. It locks the slot of the first head that is due; if another relay
holds that slot, one step leads past all of it.

Each claim continues where the last one ended, so that every key gets its share. While any transaction holds an old
snapshot, the database cannot remove the index entries of processed messages. They lie before the entries of due
messages, and a claim from the beginning steps over all of them: 5 ms became 29 ms after 200,000 messages in a
measurement on PostgreSQL 15, and it keeps growing. A claim that begins where the last one ended does not meet them. But
a message that was enqueued earlier and committed later, or that another relay gave back, lies before that position. A
claim is therefore a sweep, which reads from the beginning, as long as that is cheap; otherwise sweeps take a bounded
share of the time.
"""

import abc
import itertools
import random
import time
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple

from django_outbox.stores.timeline import (
    CHEAP_ROW,
    CHEAP_SWEEP,
    MAX_ROWS,
    MAX_SWEEP_INTERVAL,
    SWEEP_ROWS,
    Fresh,
    Piece,
    Timeline,
)
from django_outbox.utils.rates import Throttle

LAST_PARTITION = 2**31 - 1

Row = tuple[Any, ...]
"""The columns of a message from `id` to `error_class`, then its size, then columns that the store adds for itself."""

SIZE = 10
"""The index in a row of the size: the bytes of payload and headers."""

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

SPARED = 8
"""A claim leaves one of this many free slots to other relays. A claim that took all slots would be repeated the moment
its batch is settled, and the other relays would never find a free one. With this share left, the shares of any number
of relays even out by themselves."""

NONE_SPARED = -(2**30)
"""The number of free slots met at which a listing begins that leaves none to other relays."""

FEW, FEW_OF_KEY = 32, 2
FEW_IN_ALL = FEW * FEW_OF_KEY + FEW
"""Limits of a claim of few messages: heads, messages of each of their keys, and messages without a key."""

CHEAP_HEADS = 0.001
"""Seconds that a claim may spend on heads that are not due without delaying the next listing of heads."""

MAX_HEADS_INTERVAL = 1.0
"""Seconds until the next listing of heads, however much time the last one wasted."""

MANY_WAITING = 1000
WASTEFUL = 8
"""Keys are found by time after a listing with this many heads that are not due, and this many for each due head."""


class Span(NamedTuple):
    """The partitions after `after`, up to and including `until`."""

    after: int
    until: int


class OwnedHeads(NamedTuple):
    """The result of one listing of heads.

    Args:
        partitions: the partitions that are owned now and had a due head, in their order.
        at_end: whether all of the span was listed.
        slots_met: number of free slots that the claim has met so far, including the spared ones.
    """

    partitions: list[int]
    after: int
    at_end: bool
    steps: int
    slots_met: int


class Queued(NamedTuple):
    """A message in the queue of its partition.

    Args:
        size: the bytes of its payload and headers.
        available_at: when it is due, if the store needs to know.
    """

    partition: int
    id: int
    due: bool
    size: int
    available_at: str = ""


class ClaimQueries(abc.ABC):
    """The reads that a claim consists of: the part of a store that differs most between databases.

    Attributes:
        always_sweeps: whether messages without a key are always read from the beginning, because processed messages
            leave no entries in the index.
    """

    always_sweeps: ClassVar[bool] = False

    def has_due(self, publisher: str) -> bool:
        """Return whether there are due messages, or would be if they did not wait for an earlier one of their key."""
        return True

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
    def own(self, publisher: str, partitions: Collection[int]) -> set[int]:
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


class TimeCursor:
    """The position at which reads of an index by time continue.

    Args:
        max_interval: seconds after which a read is a sweep again, however long the last one took.

    Attributes:
        at: the end of the last read, in the store's own terms; None for the beginning of the index.
        swept: whether the last read was a sweep, which leaves nothing out.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_interval: float = MAX_SWEEP_INTERVAL) -> None:
        self.at: Any = None
        self.swept = True
        self._clock = clock
        self._throttle = Throttle(CHEAP_SWEEP, max_interval, clock=clock)
        self._sweep_began: float | None = None

    def start(self) -> Any:
        """Return where to read from: the position, or None for a sweep."""
        self.swept = self.at is None or self._throttle.is_open
        self._sweep_began = self._clock() if self.swept else None
        return None if self.swept else self.at

    def advance(self, rows: int, at: Any) -> None:
        """Move behind the rows that were read, given their number; without any the position stays."""
        if self._sweep_began is not None:
            self._throttle.spend(self._clock() - self._sweep_began - CHEAP_ROW * rows)
            self._sweep_began = None
        if rows:
            self.at = at

    def sweep_next(self) -> None:
        """Make the next read a sweep, however long the last one took."""
        self._throttle.reset()

    def rewind(self) -> None:
        """Go back to the beginning of the index."""
        self.at, self.swept = None, True
        self._throttle.reset()


class Cursor:
    """Reads the messages of a worker's claims, and keeps its position: in the partitions, and among unkeyed messages.

    Args:
        after: the partition after which the next listing of heads begins. Workers begin anywhere, to keep apart.

    Attributes:
        unkeyed: the position among messages without a key, in the order in which they became due.
        keyed_first: whether the next claim begins with keyed messages; it alternates from claim to claim.
        spare_offset: how many free slots the next listing counts as met already, and spares every `SPARED`th.
            It changes with each listing, so that the same slot is not always spared.
        timeline: the position among messages with a key while most keys wait; None while heads are listed.
        caught_up: whether the last claim has read all that was due, although it found something.
    """

    def __init__(self, after: int | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        # The random start spreads load; it is not a secret.
        self.after = random.randrange(LAST_PARTITION) if after is None else after  # noqa: S311
        self.unkeyed = TimeCursor(clock, MAX_SWEEP_INTERVAL)
        self.keyed_first = self.caught_up = False
        self.spare_offset = 0
        self.timeline: Timeline | None = None
        self._clock = clock
        self._steps = FEW
        self._heads = Throttle(CHEAP_HEADS, MAX_HEADS_INTERVAL, clock=clock)
        self._looks = Throttle(CHEAP_SWEEP, MAX_SWEEP_INTERVAL, clock=clock)
        self._complete = self._covered = False
        # Whether the next claim was announced, the last one found something, and the last one behind a find did, too.
        self._announced, self._found, self._finds_again = False, False, True
        self._spares = True
        # Where the rounds through all partitions began: of the listing in hand, and of the one that the next finishes.
        self._round_start = 0
        self._unfinished_round: int | None = None

    # For the relay.

    @property
    def exhausted(self) -> bool:
        """Whether the claims since the last find have read everything: all partitions, and all unkeyed messages."""
        return self.complete and self.unkeyed.swept

    @property
    def complete(self) -> bool:
        """Whether the last listing of heads, with those before it, covered all partitions and found nothing."""
        return self._complete if self.timeline is None else self.timeline.complete

    @property
    def lags(self) -> bool:
        """Whether the next claim should follow at once, although this one found nothing."""
        return not self._complete if self.timeline is None else self.timeline.lags

    def mark_exhausted(self) -> None:
        self._complete, self.caught_up, self._unfinished_round, self.unkeyed.swept = True, True, None, True
        self.timeline, self._announced = None, False

    def sweep_next(self) -> None:
        """Make the next claim a sweep, however long the last one took."""
        self.unkeyed.sweep_next()
        if self.timeline is not None:
            self.timeline.sweep_next()

    def rewind(self) -> None:
        """Begin again at the oldest unkeyed message, because messages went back that lie before the position."""
        self.unkeyed.rewind()

    def announce(self) -> None:
        """Make the next claim without a look, because a wake-up says that it will find something."""
        self._announced = True

    # For a claim.

    def read_batch(self, store: ClaimQueries, publisher: str, *, limit: int, max_bytes: int) -> list[Row]:
        """Read a batch of keyed and unkeyed messages. Claims alternate in which of them they read first.

        If the last listing met many heads that were not due, unkeyed messages go first for a while, and a batch that
        has any contains no keyed ones. At least one message is read, however large it is.
        """
        keyed_first, self.keyed_first = self.keyed_first, not self.keyed_first
        keyed_first = keyed_first and self.may_list_heads
        rows: list[Row] = []
        self.caught_up = True
        for keyed in (keyed_first, not keyed_first):
            room, bytes_left = limit - len(rows), max_bytes - total_size(rows)
            # A batch that is nearly full is not worth another statement; the next claim begins with the other kind.
            if room <= limit // 4 or bytes_left <= 0:
                self.caught_up = False
                break
            found: list[Row] = []
            if not keyed:
                found = self._read_unkeyed(store, publisher, limit=room, max_bytes=bytes_left)
            elif not rows or self.may_list_heads:
                found = self.read_keyed(store, publisher, limit=room, max_bytes=bytes_left)
            else:
                self.caught_up = False
            rows += found
            if len(found) >= room or total_size(found) >= bytes_left:
                self.caught_up = False
        self._note_found(found=bool(rows))
        return rows

    def shows_nothing(self, store: ClaimQueries, publisher: str, *, has_stream: bool) -> bool:
        """Return whether a look, which is cheaper than a claim, shows that nothing is due, if that is to be expected.

        It reads from the beginning, so it is made seldom while an old snapshot makes that expensive.
        """
        expects_nothing = self.exhausted or (self.caught_up and not self._finds_again)
        # What was announced may be in the stream.
        is_announced = self._announced and not has_stream
        if is_announced or not expects_nothing or self.timeline is not None or not self._looks.is_open:
            return False
        began = self._clock()
        has_due = store.has_due(publisher)
        self._looks.spend(self._clock() - began)
        if not has_due:
            self._note_found(found=False)
            self.mark_exhausted()
        return not has_due

    @property
    def expects_few(self) -> bool:
        """Whether the last claim has read everything, and met few heads."""
        return self.caught_up and self.timeline is None and self._steps < FEW

    def note_few(self, keyed: list[Row], unkeyed: list[Row], *, steps: int, max_bytes: int) -> None:
        """Take note of a claim of few messages.

        Args:
            steps: the number of heads that it has met.
            max_bytes: the limit for each of the two kinds.
        """
        self.unkeyed.advance(len(unkeyed), unkeyed[-1][-1] if unkeyed else None)
        self._steps = steps
        self.caught_up = (
            max(steps, len(unkeyed)) < FEW
            and has_read_all(keyed, max_depth=FEW_OF_KEY, share=max_bytes // FEW)
            and max(total_size(keyed), total_size(unkeyed)) < max_bytes
        )
        self._complete = self.caught_up and not keyed
        self._unfinished_round = None
        self._note_found(found=bool(keyed or unkeyed))

    def note_all(self, unkeyed: Sequence[Row]) -> None:
        """Take note of a claim that has read all that was due, given its messages without a key."""
        self.unkeyed.advance(len(unkeyed), max((row[-1] for row in unkeyed), default=None))
        self._complete, self.caught_up, self._unfinished_round, self._announced = True, True, None, False

    def undo(self) -> None:
        """Forget a claim that was broken off and will be repeated."""
        self.keyed_first = not self.keyed_first
        self.spare_offset = (self.spare_offset - 1) % SPARED
        self.unkeyed.at = None

    def _note_found(self, *, found: bool) -> None:
        if self._found and not self._announced:
            self._finds_again = found
        self._announced, self._found = False, found

    @property
    def may_list_heads(self) -> bool:
        """Whether to list heads although there is other work; False for a while after many of them were not due."""
        return self.timeline is not None or self._heads.is_open

    def _read_unkeyed(self, store: ClaimQueries, publisher: str, *, limit: int, max_bytes: int) -> list[Row]:
        """Read due messages without a key, from the position on or as a sweep."""
        if store.always_sweeps:
            return store.read_unkeyed(publisher, limit=limit, max_bytes=max_bytes, after=None)
        after = self.unkeyed.start()
        rows = store.read_unkeyed(publisher, limit=limit, max_bytes=max_bytes, after=after)
        self.unkeyed.advance(len(rows), rows[-1][-1] if rows else None)
        return rows

    def read_keyed(self, store: ClaimQueries, publisher: str, *, limit: int, max_bytes: int) -> list[Row]:
        """Read due messages that have a key, and own their partitions."""
        timeline = self.timeline
        if timeline is None:
            partitions = self.own_partitions(store, publisher, limit=limit)
        else:
            self.caught_up = False
            partitions = own_by_time(store, publisher, timeline, limit=limit)
            if timeline.over:
                # Few keys wait, so their heads are listed again.
                self._complete, self._unfinished_round, self.timeline = timeline.complete, None, None
        if not partitions:
            return []
        max_depth = min(max(limit // len(partitions), 1), MAX_DEPTH)
        rows = sorted(store.read_partitions(publisher, partitions, max_depth=max_depth, max_bytes=max_bytes))
        if not has_read_all(rows, max_depth=max_depth, share=max_bytes // len(partitions)):
            self.caught_up = False
        self._note_read(timeline, partitions, rows, is_full=total_size(rows) >= max_bytes)
        return rows

    def _note_read(self, timeline: Timeline | None, partitions: list[int], rows: list[Row], *, is_full: bool) -> None:
        """Decide where the next listing begins."""
        read, unread = {row[-1] for row in rows}, []
        if is_full:
            # The partitions that the batch had no room for.
            last = max(place for place, partition in enumerate(partitions) if partition in read)
            unread = partitions[last + 1 :]
        if timeline is not None:
            timeline.note_read(partitions[: len(partitions) - len(unread)], read)
            return
        if unread:
            self.after = unread[0] - 1
        if rows:
            self._spares = True
            return
        # Partitions without any message, because other transactions have locked their heads, count as not due. A round
        # that finds nothing else is repeated without sparing slots, which may have something.
        covered = self._covered and not unread
        self._complete = covered and not self._spares
        self._unfinished_round = None if covered else self._round_start
        if covered:
            self._spares = not self._spares

    def own_partitions(self, store: ClaimQueries, publisher: str, *, limit: int, spare: bool = True) -> list[int]:
        """Own partitions with a due head, starting at the position and going around all of them, and return them.

        With `spare`, some slots are left to other relays, not the same ones as by the last listing. The next listing is
        put off by the time that this one wastes on heads that are not due.
        """
        began = self._clock()
        self._round_start = self.after if self._unfinished_round is None else self._unfinished_round
        self._complete = self._covered = False
        slots_met = slots_before = self.spare_offset if spare and self._spares else NONE_SPARED
        self.spare_offset = (self.spare_offset + 1) % SPARED
        owned: list[int] = []
        steps, wanted, more = 0, count_wanted(limit), True
        while more:
            span = Span(self.after, self._round_start if self.after < self._round_start else LAST_PARTITION)
            heads = store.own_heads(
                publisher, span, wanted=wanted - len(owned), max_steps=MAX_STEPS - steps, slots_met=slots_met
            )
            owned += heads.partitions
            steps += heads.steps
            slots_met = heads.slots_met
            more = self._move(heads.after, at_end=heads.at_end)
        if self._covered:
            # All were listed, so the next listing needs no more than one span.
            self.after = 0
        slots = {partition >> SLOT_BITS for partition in owned}
        if not self._covered or slots_met - slots_before > len(slots):
            # A slot that it has spared may have something.
            self.caught_up = False
        self._steps = steps
        wasted = steps - len(owned)
        if wasted:
            self._heads.spend((self._clock() - began) * wasted / steps)
        self._complete = self._covered and not owned
        self._unfinished_round = None if owned or self._complete else self._round_start
        self._spares = self._spares or self._complete
        if wasted >= MANY_WAITING and steps >= WASTEFUL * len(owned):
            self.timeline = Timeline(self._clock)
        if self.complete and slots_met > slots_before and spare:
            # The only free slot is the one that it has spared.
            return self.own_partitions(store, publisher, limit=limit, spare=False)
        return owned

    def _move(self, after: int, *, at_end: bool) -> bool:
        """Move to where the listing of a span ended, and return whether to list the next span: the first partitions."""
        in_last_span = self.after < self._round_start or not self._round_start
        self.after = after
        if not at_end and not (in_last_span and 0 < self._round_start <= after):
            return False
        self._covered = in_last_span
        self.after = self._round_start if in_last_span else 0
        return not in_last_span


def own_by_time(store: ClaimQueries, publisher: str, timeline: Timeline, *, limit: int) -> list[int]:
    """Own partitions with due heads, found by time instead of by a listing of all heads, and return them."""
    wanted = count_wanted(limit)
    if timeline.place is None:
        timeline.begin(store.read_place())
    if timeline.may_read:
        timeline.advance(store.list_fresh(publisher, timeline.start(), limit=MAX_ROWS))
    if timeline.may_sweep(wanted):
        timeline.begin(store.read_place())
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


def lock_number(publisher: str, number: int) -> int:
    """Return the number of the `KeyLock` for one slot or partition of a publisher's keys, which is below 2**32."""
    return (1 + zlib.crc32(publisher.encode()) % 2**30) * 2**32 + number


def is_spared(slots_met: int) -> bool:
    """Return whether the next free slot is left to other relays, given how many were met before."""
    return slots_met >= 0 and slots_met % SPARED == SPARED - 1


def total_size(rows: Iterable[Row]) -> int:
    """Return the bytes of the payloads and headers of rows."""
    return sum(map(itemgetter(SIZE), rows))


def has_read_all(rows: Sequence[Row], *, max_depth: int, share: int) -> bool:
    """Return whether no partition has as many messages, or bytes, as a claim reads of one: it may have more of them.

    Args:
        rows: messages with a key.
        max_depth: the largest number of messages of a partition.
        share: the bytes of a partition after which no more of its messages are read.
    """
    if not rows or (len(rows) < max_depth and total_size(rows) < share):
        return True
    deepest = max(Counter(map(itemgetter(-1), rows)).values())
    # Mostly not even as many messages of the largest size have as many bytes.
    if deepest >= max_depth or deepest * max(map(itemgetter(SIZE), rows)) < share:
        return deepest < max_depth
    sizes = Counter[int]()
    for row in rows:
        sizes[row[-1]] += row[SIZE]
    return max(sizes.values()) < share


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
