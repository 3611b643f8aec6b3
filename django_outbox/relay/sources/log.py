"""Claims from a stream as PostgreSQL's log brings its messages.

The position and the rows decide what is delivered, exactly as without it; the log only brings the messages earlier, and
without a query that looks for them. A batch from the log adds the numbers of its transactions to the
position. The numbers in between count as running, until the log has reached a place behind everything that is visible
in a newer snapshot (a sample) and all of that is delivered: then the sample is added to the position.

While the position is where this worker has left it, one round trip locks it and inspects what has arrived, and what
arrives until the claim is settled is inspected and delivered in the same claim. Otherwise the position is locked and
read first, and what lies behind it is inspected or listed.

So the position must never pass a message that the log does not bring. The log brings every transaction that is
committed after the feed has become live. The others have smaller numbers than `_start`, the end of the first snapshot
that is taken after that. They have passed if the position has reached `_start` and sees each smaller number that is
visible by now. If it does not, messages are listed from the table. That is also done if a page is in progress, a
transaction is larger than a batch, or the log does not reach a sample in time.

Each message is looked up by its id before it is delivered, because it may have been moved to the table or deleted, or
may not be visible yet: a transaction that waits for a synchronous standby is already in the log. So the log may end,
lag, begin again, or bring a transaction twice. Its slot is temporary, and everything is reported as received at once:
PostgreSQL keeps no log for a relay that is down, slow, or without its broker.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django_outbox.db.snapshots import Snapshot
from django_outbox.messages import Message
from django_outbox.relay.limits import LIMITS, Limits
from django_outbox.relay.sources.table import TableSource
from django_outbox.stores.postgresql import PostgreSQLStore
from django_outbox.stores.stream import StoredPosition, Stream
from django_outbox.stores.wal import PUBLICATION, SET_UP, Inspection, LogQueries, find_publication
from django_outbox.utils.logs import logger
from django_outbox.utils.text import describe

if TYPE_CHECKING:
    from django_outbox.stores.replication import LogReader, Transaction

MAX_GAP = 2000
"""Maximum number of transactions that a batch from the log lists as running in the position."""

GIVE_UP = 10.0
"""Seconds until the log is read again from the start, if it has not reached a sample."""

VISIBLE_SOON = 0.02
"""Seconds within which a transaction becomes visible after it is in the log, except with a synchronous standby."""

FULL = "too many messages wait"
"""The end of a feed that the relay does not keep up with, as in an outage of the broker."""

IN_USE = "another worker reads it"
"""The end of a feed because another connection has its slot."""


class Feed:
    """Reads the log in its own thread, until it is closed or fails.

    Args:
        table: the OID of the table of messages.
        max_bytes: maximum memory of the messages that wait; with more, the feed ends.
        read_time: seconds until an idle reader checks whether the feed is closed.

    Attributes:
        server: the identifier and the timeline of the server.
        ended: the reason why it is no longer read; empty while it is.
    """

    def __init__(
        self,
        parameters: Mapping[str, Any],
        publisher: str,
        *,
        slot: str,
        table: int,
        max_bytes: int,
        wake: Callable[[], None],
        read_time: float,
    ) -> None:
        self.server = ("", 0)
        self.is_live = False
        self.ended = ""
        self.arrived = 0
        self._max_bytes, self._wake, self._read_time = max_bytes, wake, read_time
        self._lock = threading.Lock()
        self._has_arrived = threading.Condition(self._lock)
        self._waiting: deque[Transaction] = deque()
        self._bytes = self._received = 0
        self._arrived_at = 0.0
        self._closing = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(parameters, publisher, slot, table), name="outbox-wal", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait a moment for its end."""
        self._closing.set()
        self._thread.join(5 * self._read_time)

    @property
    def is_fresh(self) -> bool:
        """Whether the last transaction arrived just now, so that it may not be visible yet."""
        return time.monotonic() - self._arrived_at < VISIBLE_SOON

    def wait(self, received: int, seconds: float) -> bool:
        """Wait until more than that many transactions have arrived; return False if none has, or the feed has ended."""
        with self._has_arrived:
            self._has_arrived.wait_for(lambda: self.arrived > received or self.ended, seconds)
            return self.arrived > received and not self.ended

    def forget(self, passed: Snapshot) -> None:
        """Forget the first transactions, up to one that has not passed."""
        with self._lock:
            while self._waiting and passed.sees(self._waiting[0].xid):
                self._bytes -= self._waiting.popleft().size

    def list_next(self, passed: Snapshot, limit: int, max_bytes: int) -> "tuple[list[Transaction], bool]":
        """Return the first transactions that have not passed and fit into a batch, and whether these are all."""
        batch: list[Transaction] = []
        with self._lock:
            for transaction in self._waiting:
                if passed.sees(transaction.xid):
                    continue
                limit -= len(transaction.messages)
                max_bytes -= transaction.size
                if limit < 0 or max_bytes < 0:
                    return batch, False
                batch.append(transaction)
        return batch, True

    def has_reached(self, lsn: int) -> bool:
        """Return whether everything that was committed before a place in the log has arrived."""
        return self._received >= lsn

    def has_passed(self, lsn: int, passed: Snapshot) -> bool:
        """Return whether everything that was committed before a place in the log has arrived and passed.

        A feed that has ended has forgotten what waits, so nothing is known of it.
        """
        with self._lock:
            return (
                not self.ended
                and self._received >= lsn
                and all(passed.sees(transaction.xid) for transaction in self._waiting if transaction.lsn < lsn)
            )

    def _run(self, parameters: Mapping[str, Any], publisher: str, slot: str, table: int) -> None:
        try:
            # Only here, because a project may have another driver.
            from django_outbox.stores.replication import LogReader, SlotInUse  # noqa: PLC0415
        except ImportError:
            self._end("psycopg 3 is not installed")
            return
        try:
            reader = LogReader(parameters, publisher, is_stopping=self._closing.is_set)
            try:
                self.server = reader.identify()
                reader.start(slot, table)
                self.is_live = True
                self._wake()
                while not self._closing.is_set():
                    self._add(reader.read(self._read_time, self._max_bytes), reader)
            finally:
                reader.close()
        except SlotInUse:
            self._end(IN_USE)
        except Exception as error:
            self._end(describe(error).removeprefix("LogUnavailable: "))
        else:
            self._end(self.ended or "closed")

    def _add(self, committed: "list[Transaction]", reader: "LogReader") -> None:
        with self._lock:
            self._waiting.extend(committed)
            self._bytes += sum(transaction.size for transaction in committed)
            self._received = reader.received
            self.arrived += len(committed)
            if self._bytes + reader.size > self._max_bytes:
                self.ended = FULL
                self._waiting.clear()
                self._closing.set()
            self._has_arrived.notify_all()
        if committed:
            self._arrived_at = time.monotonic()
            self._wake()

    def _end(self, reason: str) -> None:
        with self._lock:
            self.is_live, self.ended = False, reason
            self._waiting.clear()
            self._has_arrived.notify_all()
        self._wake()


class Sample(NamedTuple):
    """A snapshot, a position in the log behind everything that is visible in it, and when it was taken."""

    visible: Snapshot
    lsn: int
    at: float


class Arrived(NamedTuple):
    """What has arrived behind a position, before it is inspected.

    Attributes:
        passed: the position, or a newer snapshot if nothing new was visible in it.
        batch: the first transactions that have not passed.
        complete: whether these are all.
        received: the number of transactions that the feed had received.
    """

    feed: Feed
    passed: Snapshot
    batch: "Sequence[Transaction]"
    complete: bool
    received: int

    @property
    def ids(self) -> list[int]:
        return [message.id for each in self.batch for message in each.messages]

    @property
    def size(self) -> int:
        """The bytes of its messages."""
        return sum(each.size for each in self.batch)


class Brought(NamedTuple):
    """What the log has brought.

    Attributes:
        messages: by their ids; they are in the stream.
        waiting: those that wait for an earlier message of their key in the table.
        passed: the snapshot in which they are visible, and all messages before them.
        is_all: whether nothing else has arrived.
        goes_on: whether there is more, which was too much or is not visible yet.
    """

    messages: Sequence[Message]
    waiting: Set[int]
    passed: str
    is_all: bool
    goes_on: bool


class LogFollower:
    """Brings the messages of one publisher's stream as they are committed, and wakes its worker."""

    def __init__(self, table: TableSource, wake: Callable[[Iterable[str]], None], limits: Limits = LIMITS) -> None:
        self._table = table
        self._wake = wake
        self._limits = limits
        self._feed: Feed | None = None
        self._start: int | None = None
        self._seen: Snapshot | None = None
        self._sample: Sample | None = None
        self._in_hand = self._done = 0
        self._look_at = self._open_at = self._stands_by_until = 0.0
        self._reported: str | None = None
        self._slot = self._published = ""
        self._name = f"{table.publisher_alias} log {id(self)}"

    def close(self) -> None:
        self._close_feed("")

    def begin_session(self) -> None:
        """Close the feed: the new session may be one of another server."""
        self._close_feed("" if self._feed is None else self._feed.ended)

    @property
    def is_open(self) -> bool:
        """Whether it reads the log, or begins to."""
        return self._feed is not None

    @property
    def has_nothing_new(self) -> bool:
        """Whether all that has arrived is settled, and it is not time yet to look whether the log is behind."""
        feed = self._feed
        return feed is not None and feed.is_live and feed.arrived == self._done and time.monotonic() < self._look_at

    @property
    def stands_by(self) -> bool:
        """Whether another worker had the log a moment ago."""
        return self._feed is None and time.monotonic() < self._stands_by_until

    def add_wake_ups(self, names: frozenset[str]) -> frozenset[str]:
        """Return the names of the wake-ups of a worker with this log."""
        # A standby worker would take a wake-up from the worker that reads the log.
        return frozenset() if self.stands_by else names | {self._name}

    def rewind(self) -> None:
        """Bring again what has arrived and is not settled."""
        self._done = -1

    def note_passed(self, passed: str) -> None:
        """Note that the last claim brought nothing, and where the stream stands, which is not stored."""
        self._seen, self._done = Snapshot.read(passed), self._in_hand

    def note_settled(self) -> None:
        """Note that all messages of the last claim are settled."""
        self._done = self._in_hand

    def make_way(self) -> bool:
        """Close a feed that has ended; return whether to leave the stream to another worker, which reads the log."""
        if self._feed is not None and self._feed.ended:
            self._close_feed(self._feed.ended)
        if not self.stands_by:
            return False
        if self.queries.has_reader(self._slot):
            return True
        self._stands_by_until = self._open_at = 0.0
        return False

    def find_arrived(self, position: StoredPosition, limit: int) -> Arrived | None:
        """Return what has arrived behind the stored position; None if messages must be listed."""
        if self._feed is None or position.page:
            return None
        passed = Snapshot.read(position.passed)
        if self._seen is not None:
            passed = passed.union(self._seen)
        self._feed.forget(passed)
        return self.find_behind(passed, limit, self._table.settings.batch_bytes)

    def find_behind(self, passed: Snapshot, limit: int, max_bytes: int) -> Arrived | None:
        """Do the same for a position that is not stored yet, and may never be: forget nothing."""
        feed = self._feed
        if feed is None or not feed.is_live:
            return None
        received = feed.arrived
        return Arrived(feed, passed, *feed.list_next(passed, limit, max_bytes), received)

    def wait(self, seconds: float) -> bool:
        """Wait until something has arrived after the last claim; return whether it has."""
        return self._feed is not None and self._in_hand >= 0 and self._feed.wait(self._in_hand, seconds)

    def read(self, stream: Stream, position: StoredPosition, limit: int) -> Brought | None:
        """Return the next messages behind the position; None if they must be listed."""
        arrived = self.find_arrived(position, limit)
        if arrived is not None:
            return self.take(stream, arrived, self.queries.inspect(arrived.ids))
        self._note_nothing()
        return None

    def take(self, stream: Stream, arrived: Arrived, inspection: Inspection) -> Brought | None:
        """Return the messages that have arrived and are to be delivered; None if they must be listed."""
        self._note_nothing()
        feed, passed, batch, complete, received = arrived
        visible = inspection.visible
        if difference := self._find_difference(stream, feed, inspection):
            self._close_feed(difference)
            return None
        if self._start is None:
            self._start = visible.end
            self._report("")
        if not (batch or complete) or not self._has_passed_start(passed, visible):
            return None
        ready = [transaction for transaction in batch if visible.sees(transaction.xid)]
        xids = {transaction.xid for transaction in ready}
        if max(xids, default=0) - passed.end > MAX_GAP:
            return None
        sampled = self._add_sample(feed, passed.adding(xids), inspection, has_more=bool(ready))
        if sampled is None:
            return None
        self._look_at = time.monotonic() + self._limits.log_look_interval
        takes_all = complete and len(ready) == len(batch)
        messages = [message for each in ready for message in each.messages if message.id in inspection.streamed]
        messages.sort(key=lambda message: message.id)
        self._in_hand = received if takes_all else -1
        goes_on = not complete or (not takes_all and feed.is_fresh)
        return Brought(messages, inspection.waiting, str(sampled), takes_all, goes_on)

    def note_listing(self, passed: str, *, may_open: bool) -> None:
        """Note where the stream stands after a listing, and begin to read the log if it has caught up (`may_open`)."""
        if self._feed is not None:
            # The position is not stored if nothing is new.
            self._seen = Snapshot.read(passed)
        elif may_open and time.monotonic() >= self._open_at:
            self._open_feed()

    @property
    def _store(self) -> PostgreSQLStore:
        return cast(PostgreSQLStore, self._table.store)

    @property
    def queries(self) -> LogQueries:
        return LogQueries(self._store, self._table.publisher_alias)

    def _note_nothing(self) -> None:
        self._look_at = 0.0
        self._in_hand = self._done = -1

    def _find_difference(self, stream: Stream, feed: Feed, inspection: Inspection) -> str:
        """Return why the log may lack messages of the table; empty if it does not."""
        if feed.server != (stream.find_server() if self._start is None else feed.server[0], inspection.timeline):
            return "it is the log of another server"
        return "the publication has changed" if inspection.published != self._published else ""

    def _has_passed_start(self, passed: Snapshot, visible: Snapshot) -> bool:
        """Return whether everything has passed that is visible now, and that the log may not bring."""
        start = self._start or 0
        late = takewhile(lambda xid: xid < start, passed.running)
        return passed.end >= start and not any(map(visible.sees, late))

    def _add_sample(self, feed: Feed, passed: Snapshot, inspection: Inspection, *, has_more: bool) -> Snapshot | None:
        """Return the position with the sample if the log has reached it; None if the log is behind."""
        now = time.monotonic()
        sample = self._sample = self._sample or Sample(inspection.visible, inspection.lsn, now)
        if feed.has_passed(sample.lsn, passed):
            self._sample = None
            return passed.union(sample.visible)
        has_reached = feed.has_reached(sample.lsn)
        if now < sample.at + self._limits.log_patience or (has_reached and has_more):
            return passed
        if not has_reached and now > sample.at + GIVE_UP:
            self._close_feed(f"it is more than {GIVE_UP:g} s behind")
        return None

    def _open_feed(self) -> None:
        self._open_at = time.monotonic() + self._limits.log_open_interval
        publication = find_publication(self._store)
        if publication.missing:
            remedy = SET_UP.format(alias=self._table.using)
            self._report(f"the publication {PUBLICATION} is missing or incomplete. {remedy}")
            return
        self._published = publication.identity
        table, self._slot = self.queries.find_table()
        if self.queries.has_reader(self._slot):
            self._stand_by()
            return
        self._feed = Feed(
            self._table.connection.get_connection_params(),
            self._table.publisher_alias,
            slot=self._slot,
            table=table,
            max_bytes=2 * self._table.settings.batch_bytes,
            wake=partial(self._wake, [self._name]),
            read_time=self._limits.log_read_time,
        )

    def _close_feed(self, reason: str) -> None:
        """Close the feed, if there is one; an empty reason is not logged."""
        if self._feed is not None:
            self._feed.close()
        self._feed = self._start = self._seen = self._sample = None
        if reason == IN_USE:
            self._stand_by()
        elif reason and reason != FULL:
            self._report(reason)

    def _stand_by(self) -> None:
        self._stands_by_until = time.monotonic() + self._limits.log_standby_time

    def _report(self, reason: str) -> None:
        """Log once that the log is not read, and why, or that it is."""
        if reason == self._reported:
            return
        self._reported = reason
        if reason:
            logger.warning(
                "Publisher %(publisher)r: PostgreSQL's write-ahead log of database %(database)r is not read: "
                "%(reason)s. The relay searches the table instead.",
                event="relay.log_unavailable",
                publisher=self._table.publisher_alias,
                database=self._table.using,
                reason=reason.rstrip("."),
            )
        else:
            logger.info(
                "Publisher %(publisher)r: messages are read from PostgreSQL's write-ahead log, database %(database)r.",
                event="relay.log_read",
                publisher=self._table.publisher_alias,
                database=self._table.using,
            )
