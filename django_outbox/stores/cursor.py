"""A worker's position: each claim continues where the last one ended, and every key gets its share.

While any transaction holds an old snapshot, the database cannot remove the index entries of processed messages. They
lie before the entries of due messages, and a claim from the beginning steps over all of them: 5 ms became 29 ms after
200,000 messages in a measurement on PostgreSQL 15, and it keeps growing. A claim that begins where the last one ended
does not meet them. But a message that was enqueued earlier and committed later, or that another relay gave back, lies
before that position. A claim is therefore a sweep, which reads from the beginning, as long as that is cheap; otherwise
sweeps take a bounded share of the time.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django_outbox.rates import Throttle
from django_outbox.stores.timeline import CHEAP_ROW, CHEAP_SWEEP, MAX_SWEEP_INTERVAL, Timeline

LAST_PARTITION = 2**31 - 1

SPARED = 8
"""A claim leaves one of this many free slots to other relays. A claim that took all slots would be repeated the moment
its batch is settled, and the other relays would never find a free one. With this share left, the shares of any number
of relays even out by themselves."""

NONE_SPARED = -(2**30)
"""The number of free slots met at which a listing begins that leaves none to other relays."""

CHEAP_HEADS = 0.001
"""Seconds that a claim may spend on heads that are not due without delaying the next listing of heads."""

MAX_HEADS_INTERVAL = 1.0
"""Seconds until the next listing of heads, however much time the last one wasted."""

MANY_WAITING = 1000
WASTEFUL = 8
"""A listing that meets so many heads that are not due, and this many for each one that is, is the last one for a while:
keys are then found by time."""


@dataclass(slots=True)
class Position:
    """A position in an index that is ordered by time.

    Args:
        max_interval: seconds after which a read is a sweep again, however long the last one took.
        clock: the time in seconds.

    Attributes:
        at: the end of the last read, in the store's own terms; None for the beginning of the index.
        swept: whether the last read was a sweep, so that nothing was left out.
    """

    max_interval: float = field(default_factory=lambda: MAX_SWEEP_INTERVAL)
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    at: Any = field(default=None, init=False)
    swept: bool = field(default=True, init=False)
    _throttle: Throttle = field(init=False, repr=False)
    _sweep_began: float | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self._throttle = Throttle(CHEAP_SWEEP, self.max_interval, clock=self.clock)

    def start(self) -> Any:
        """Return where to read from: the position, or None for a sweep."""
        self.swept = self.at is None or self._throttle.is_open
        self._sweep_began = self.clock() if self.swept else None
        return None if self.swept else self.at

    def advance(self, rows: int, at: Any) -> None:
        """Move behind what was read.

        Args:
            rows: how many rows were read; without any the position stays.
            at: the end of the last row.
        """
        if self._sweep_began is not None:
            self._throttle.spend(self.clock() - self._sweep_began - CHEAP_ROW * rows)
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


class Span(NamedTuple):
    """The partitions after `after`, up to and including `until`."""

    after: int
    until: int


@dataclass(slots=True)
class Cursor:
    """The position of one worker's claims: in the partitions, and among unkeyed messages.

    Args:
        after: the partition after which the next listing of heads begins. Workers begin anywhere, to keep apart.
        clock: the time in seconds.

    Attributes:
        unkeyed: the position among messages without a key, in the order in which they became due.
        keyed_first: whether the next claim begins with keyed messages; it alternates from claim to claim.
        spare_offset: how many free slots the next listing counts as met already, and spares every `SPARED`th.
            It changes with each listing, so that the same slot is not always spared.
        timeline: the position among messages with a key while most keys wait; None while heads are listed.
    """

    # The random start spreads load; it is not a secret.
    after: int = field(default_factory=lambda: random.randrange(LAST_PARTITION))  # noqa: S311
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    unkeyed: Position = field(init=False)
    keyed_first: bool = field(default=False, init=False)
    spare_offset: int = field(default=0, init=False)
    timeline: Timeline | None = field(default=None, init=False)
    _heads: Throttle = field(init=False, repr=False)
    _complete: bool = field(default=False, init=False)
    _covered: bool = field(default=False, init=False)
    _spares: bool = field(default=True, init=False)
    # Where the rounds through all partitions began: of the listing in hand, and of the one that the next finishes.
    _round_start: int = field(default=0, init=False)
    _unfinished_round: int | None = field(default=None, init=False)
    _listing_began: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.unkeyed = Position(clock=self.clock)
        self._heads = Throttle(CHEAP_HEADS, MAX_HEADS_INTERVAL, clock=self.clock)

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
        self._complete, self._unfinished_round, self.unkeyed.swept = True, None, True
        self.timeline = None

    def sweep_next(self) -> None:
        """Make the next claim a sweep, however long the last one took."""
        self.unkeyed.sweep_next()
        if self.timeline is not None:
            self.timeline.sweep_next()

    def rewind(self) -> None:
        """Begin again at the oldest unkeyed message, because messages went back that lie before the position."""
        self.unkeyed.rewind()

    # For a claim.

    def begin_claim(self) -> bool:
        """Return whether this claim begins with keyed messages: every second one does, unless heads are put off."""
        keyed_first, self.keyed_first = self.keyed_first, not self.keyed_first
        return keyed_first and self.may_list_heads

    def undo_claim(self) -> None:
        """Forget a claim that was broken off and will be repeated."""
        self.keyed_first = not self.keyed_first
        self.spare_offset = (self.spare_offset - 1) % SPARED
        self.unkeyed.at = None

    @property
    def may_list_heads(self) -> bool:
        """Whether to list heads although there is other work; False for a while after many of them were not due."""
        return self.timeline is not None or self._heads.is_open

    @property
    def span(self) -> Span:
        """The partitions to list next: up to the last one, then from the first one up to where the round began."""
        return Span(self.after, self._round_start if self.after < self._round_start else LAST_PARTITION)

    def begin_listing(self, *, spare: bool = True) -> int:
        """Begin to list heads, and return how many free slots count as met already.

        Args:
            spare: whether to spare slots, and others than the last listing; False to spare none.
        """
        self._listing_began = self.clock()
        self._round_start = self.after if self._unfinished_round is None else self._unfinished_round
        self._complete = False
        offset = self.spare_offset
        self.spare_offset = (offset + 1) % SPARED
        return offset if spare and self._spares else NONE_SPARED

    def advance(self, after: int, *, at_end: bool) -> bool:
        """Move to where a listing of `span` ended, and return whether to list the next span.

        Args:
            after: the last partition that was listed.
            at_end: whether all of the span was listed.
        """
        in_last_span = self.after < self._round_start or not self._round_start
        self.after = after
        if not at_end and not (in_last_span and 0 < self._round_start <= after):
            return False
        self._complete = in_last_span
        self.after = self._round_start if in_last_span else 0
        return not in_last_span

    def end_listing(self, *, steps: int, owned: int) -> None:
        """End the listing of heads, and put off the next one by the time wasted on heads that were not due.

        Args:
            steps: how many heads were listed.
            owned: how many of them were due and are owned now.
        """
        seconds = self.clock() - self._listing_began
        self._heads.spend(seconds * (steps - owned) / max(steps, 1))
        self._covered = self._complete
        self._complete = self._covered and not owned
        self._unfinished_round = None if owned or self._complete else self._round_start
        self._spares = self._spares or self._complete
        if steps - owned >= MANY_WAITING and steps >= WASTEFUL * owned:
            self.timeline = Timeline(self.clock)

    def end_read(self, *, rows: int) -> None:
        """Note how many messages of the owned partitions are claimed.

        Partitions without any, because other transactions have locked their heads, count as not due. A round that finds
        nothing else is repeated without sparing slots, because the spared slots may have something.
        """
        if rows:
            self._spares = True
            return
        self._complete = self._covered and not self._spares
        self._unfinished_round = None if self._covered else self._round_start
        if self._covered:
            self._spares = not self._spares

    def end_time(self) -> None:
        """List heads again, because few keys wait."""
        if self.timeline is not None:
            self._complete, self._unfinished_round, self.timeline = self.timeline.complete, None, None

    def return_to_unserved(self, partitions: Sequence[int], served: Iterable[int]) -> None:
        """Begin the next listing with the first of the owned partitions that the batch had no room for."""
        served = set(served)
        last = max(place for place, partition in enumerate(partitions) if partition in served)
        if last + 1 < len(partitions):
            self.after = partitions[last + 1] - 1
