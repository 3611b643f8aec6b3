"""Keys found by the time at which their messages become due, instead of by a listing of all heads.

A listing takes a step for each key, due or not. While most keys wait, it costs seconds and finds little. A message
that becomes due lies, in an index by due time, behind all that were due before, so a read from where the last one
ended finds it however many keys wait, and steps once over messages that are due but blocked.

Such a read does not find all that can be delivered: messages behind the last batch, and messages of keys that
another relay had, are looked up by their partitions, which a worker keeps in mind. Messages committed late are found
by reads that begin a little earlier, as long as they are cheap. The rest, such as a message behind a cancelled head,
is found by a sweep: a listing of all heads in small pieces, which takes a hundredth of the time. The first sweep takes
no breaks, because it finds all that was due before.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple

from django_outbox.utils.rates import Throttle

CHEAP_SWEEP = 0.005
CHEAP_ROW = 0.00001
"""Seconds that a sweep may take without delaying the next one: in all, and in addition for each row that it finds."""

MAX_SWEEP_INTERVAL = 10.0
"""Seconds until the next sweep, however long the last one took: the longest that a late message waits for one."""

MAX_ROWS = 2000
"""Maximum number of messages that one read takes."""

OVERLAP = 10.0
"""Seconds that a message may be committed after it became due, to be found by a read that is cheap."""

SWEEP_ROWS = 10_000
"""Number of index entries in a piece of a sweep: some milliseconds."""

SWEEP_SPARING = 100
"""The pause after a piece of a sweep, as a multiple of the seconds that it took."""

FEW_ROWS = 500
"""A sweep that meets no more undelivered messages shows that a listing of the heads is cheap again."""

MAX_KNOWN = 50_000
"""Number of partitions to keep in mind from which no more messages are read, and no further ones are swept."""

MAX_CANDIDATES = 1000
"""Maximum number of partitions that one claim looks up."""


class Fresh(NamedTuple):
    """A message that has become due: its partition, and its place in the order of due times."""

    partition: int
    place: Any


class Piece(NamedTuple):
    """A piece of a sweep: the partitions with a due head, the last one that was listed, and the entries read."""

    due: list[int]
    until: int
    rows: int


class Timeline:
    """The position of one worker in the order of due times, and the partitions that it keeps in mind.

    Attributes:
        place: the place behind the last message that was read; None before the first read.
        swept_to: the partition after which the next piece of a sweep begins.
        complete: whether a whole sweep has found nothing to deliver, and nothing was found since.
        over: whether a sweep has met so few messages that heads can be listed again.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.place: Any = None
        self.swept_to = self._swept_rows = 0
        self.complete = self.over = False
        self._clock = clock
        self._places: deque[tuple[float, Any]] = deque()
        # Partitions to look up, in this order; partitions that other relays have are looked up without haste.
        self._ready: dict[int, None] = {}
        self._busy: dict[int, None] = {}
        self._overlaps = Throttle(CHEAP_SWEEP, MAX_SWEEP_INTERVAL, clock=clock)
        self._sweeps = Throttle(0.0, MAX_SWEEP_INTERVAL, clock=clock, sparing=SWEEP_SPARING)
        self._began = self._swept_at = 0.0
        self._overlapping = self._more = self._swept_once = self._sweep_now = self._found = False

    @property
    def lags(self) -> bool:
        """Whether the next claim should follow at once, because something due may have been left out."""
        return not self._swept_once or self._more or bool(self._ready)

    def sweep_next(self) -> None:
        """Let the next claim sweep, however much time sweeps have taken."""
        self._sweep_now = True

    # Messages that have become due.

    def begin(self, place: Any) -> None:
        """Begin at this moment's place: what was due before is found by sweeps. Do nothing if that was done before.

        If the database's clock went back, begin again, because reads begin at a place that is not due.
        """
        if self.place is None or place < self.place:
            self.place = place
            self._places = deque([(self._clock(), place)])

    @property
    def may_read(self) -> bool:
        """Whether there is room for further partitions."""
        return len(self._ready) < MAX_KNOWN

    def start(self) -> Any:
        self._began = self._clock()
        # A read that was cut continues where it ended.
        if not self._more:
            self._overlapping = self._overlaps.is_open
        return self._earlier_place() if self._overlapping and not self._more else self.place

    def advance(self, rows: Sequence[Fresh]) -> None:
        """Move behind what was read, and keep its partitions in mind."""
        now = self._clock()
        if self._overlapping:
            self._overlaps.spend(now - self._began)
        self._more = len(rows) >= MAX_ROWS
        if rows:
            self.place = rows[-1].place
            if now - self._places[-1][0] >= OVERLAP / 10:
                self._places.append((now, self.place))
        self._know(row.partition for row in rows)

    def _earlier_place(self) -> Any:
        """Return the last place that was reached at least `OVERLAP` ago."""
        while len(self._places) > 1 and self._places[1][0] <= self._began - OVERLAP:
            self._places.popleft()
        return self._places[0][1]

    # Sweeps.

    def may_sweep(self, wanted: int) -> bool:
        """Return whether this claim lists a piece of all heads; while there is other work, seldom."""
        if len(self._ready) >= wanted:
            return False
        if not self._swept_once or self._sweep_now:
            return True
        overdue = self._clock() - self._swept_at >= MAX_SWEEP_INTERVAL
        return self._sweeps.is_open and (overdue or not self._ready)

    def begin_piece(self) -> None:
        self._swept_at = self._clock()
        self._sweep_now = False

    def end_piece(self, piece: Piece) -> None:
        """Move behind a piece of a sweep, and keep in mind the partitions with a due head."""
        self._sweeps.spend(self._clock() - self._swept_at)
        # What a read has found may be behind a head that waits.
        self._found = self._found or any(partition not in self._busy for partition in piece.due)
        self._know(piece.due)
        self._swept_rows += piece.rows
        self.swept_to = piece.until
        if piece.rows < SWEEP_ROWS:
            self._swept_once = True
            self.complete = not self._found
            self.over = self._swept_rows <= FEW_ROWS
            self.swept_to, self._swept_rows, self._found = 0, 0, False

    # Partitions.

    def candidates(self) -> list[int]:
        """Return the partitions to look up in this claim."""
        busy = [*self._busy][: MAX_CANDIDATES // 4]
        return [*[*self._ready][:MAX_CANDIDATES], *busy]

    def note_lookup(self, candidates: Iterable[int], due: Collection[int]) -> None:
        """Forget the partitions without a due head. When they become due, a read finds them."""
        for partition in candidates:
            if partition not in due:
                self._ready.pop(partition, None)
                self._busy.pop(partition, None)

    def note_owned(self, tried: Iterable[int], owned: Collection[int]) -> None:
        """Look up the owned partitions again in the next claim, and partitions that another relay has later."""
        for partition in tried:
            self._ready.pop(partition, None)
            self._busy.pop(partition, None)
            (self._ready if partition in owned else self._busy)[partition] = None

    def note_read(self, read: Iterable[int], served: Collection[int]) -> None:
        """Look up partitions later if other transactions have locked their messages, so that nothing was read.

        Args:
            served: the partitions with messages in the batch.
        """
        if served:
            self._found, self.complete = True, False
        for partition in read:
            if partition not in served:
                self._ready.pop(partition, None)
                self._busy[partition] = None

    def _know(self, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if partition not in self._busy:
                self._ready[partition] = None
